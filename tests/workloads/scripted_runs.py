"""Whole runs of the workloads' recipes by a policy whose words are written: manager, pool and trainer are the real
ones, and so is the model that says what each word's log-prob is. Of a group's episodes every second one knows the way.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow import config as cfg
from astraflow.bootstrap import create_run
from astraflow.dataflow.manager import run_manager
from astraflow.models import empty_causal_lm, load_tokenizer
from astraflow.problems import Problem, load_problems
from astraflow.query import Run
from astraflow.raas.engine import Generation, GenerationRequest
from astraflow.raas.pool import run_pool
from astraflow.raas.scripted_engine import ScriptedEngine
from astraflow.recipe import load_recipe
from astraflow.trainer.loop import run_trainer
from astraflow.weights.update import WeightUpdate
from storage import open_store
from tests.workloads.byte_model import write_model
from tests.workloads.sane_records import Records, check

RECIPES = Path(__file__).parents[2] / "infra" / "recipes"
Words = Callable[[Problem], list[str]]
_SAID = re.compile(r"<assistant>\n(.*?)(?:<\|end\|>|\Z)", re.DOTALL)


@dataclass
class Script:
    """What is said: of those that begin a problem, every second one goes ``right``, the others go ``wrong``."""

    problems: Sequence[Problem]
    right: Words
    wrong: Words
    _begun: Counter[str] = field(default_factory=Counter)

    def next(self, shown: str) -> str:
        """What follows what is shown."""
        problem = max((p for p in self.problems if p.prompt.strip() in shown), key=lambda p: len(p.prompt))
        *said, _cue = _SAID.findall(shown)
        right, wrong = self.right(problem), self.wrong(problem)
        if not said:
            self._begun[problem.id] += 1
            return right[0] if self._begun[problem.id] % 2 else wrong[0]
        for words in (right, wrong):
            for place in range(len(said), len(words)):
                if words[place - len(said) : place] == said:
                    return words[place]
        raise AssertionError(f"nobody says {said}")


class SpokenEngine(ScriptedEngine):
    """Says what the script says, with the log-probs that the policy's weights give it."""

    def __init__(self, folder: Path, script: Script) -> None:
        tokenizer: Any = load_tokenizer(folder)
        self._model = empty_causal_lm(folder, torch.float32)

        def speak(request: GenerationRequest) -> list[int]:
            text = script.next(tokenizer.decode(request.prompt_ids))
            ends = any(text.endswith(stop) for stop in request.stop)
            return [*tokenizer.encode(text), *([] if ends else [tokenizer.eos_token_id])]

        super().__init__(speak, decode=lambda ids: str(tokenizer.decode(ids)))

    async def generate(self, request: GenerationRequest) -> Generation:
        said = await super().generate(request)
        ids = torch.tensor([[*request.prompt_ids, *said.token_ids]])
        with torch.inference_mode():
            logits = self._model(input_ids=ids[:, :-1]).logits[0, -len(said.token_ids) :]
        chosen = logits.log_softmax(-1).gather(-1, ids[0, -len(said.token_ids) :, None])[:, 0]
        return Generation(said.token_ids, chosen.tolist(), said.versions, said.finish_reason)

    async def load(self, update: WeightUpdate) -> None:
        update.write_into(dict(self._model.state_dict()), everything=True)
        await super().load(update)


def play(folder: Path, recipe: str, right: Words, wrong: Words, *overrides: str, steps: int = 2) -> Run:
    """The recipe's run, few steps of few problems, played to its end. Raises what any participant raises."""
    model = folder / "model"
    write_model(model)
    few = [f"trainer.steps={steps}", "trainer.batch_size=2", "pools.local.capacity=2", "trainer.lr=1e-3"]
    own = [f"policies.solver.model={model}", "policies.solver.sampling.max_tokens=2000", *few, *overrides]
    config = load_recipe(RECIPES / f"{recipe}.toml", own, default_store=str(folder / "store"))
    store = open_store(config.store)
    config = create_run(store, config)
    script = Script(load_problems(config.problems, config.seed), right, wrong)

    async def engine(files: Path, pool: cfg.Pool) -> SpokenEngine:
        return SpokenEngine(files, script)

    torch.set_num_threads(1)
    together(
        lambda: run_manager(store, config, holder="test"),
        lambda: run_trainer(store, config, "solver"),
        lambda: asyncio.run(run_pool(store, config, "local", engines=engine)),
    )
    return Run(store, config.name)


def check_earned(run: Run, pays: Callable[[Problem], float], *, fails: float) -> None:
    """The records are sane; of each group half earned what the right way pays, the others what failing costs."""
    figures = check(run)
    assert figures["failed"] == {} and set(figures["endings"]) == {"stop"}
    records = Records(run)
    earned: dict[int, dict[int, float]] = defaultdict(dict)
    problems = {}
    for row in records.rows:
        earned[row["group_id"]][row["episode"]] = row["reward"]
        problems[row["group_id"]] = records.problems[row["problem_id"]]
    for group, rewards in earned.items():
        right = pays(problems[group])
        assert sorted(rewards.values()) == pytest.approx([fails, fails, right, right])


def together(*lives: Callable[[], None]) -> None:
    """Each in a thread of its own, until all have ended or one has failed."""
    errors: list[BaseException] = []
    over = threading.Semaphore(0)

    def live(life: Callable[[], None]) -> None:
        try:
            life()
        except BaseException as error:  # noqa: BLE001  # raised where the run is waited for
            errors.append(error)
        over.release()

    for life in lives:
        threading.Thread(target=live, args=(life,), daemon=True).start()
    for _ in lives:
        over.acquire()
        if errors:
            raise errors[0]

"""An environment of verifiers v1 trains through a pool's server: manager, trainer and pool are the real ones.

Runs where verifiers is installed: ``make test-verifiers``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow import config as cfg
from astraflow import open_run
from astraflow.bootstrap import create_run
from astraflow.dataflow.manager import run_manager
from astraflow.raas.gateway import Gateway
from astraflow.raas.pool import run_pool
from astraflow.rewards import ScoredProblem
from astraflow.trainer.loop import run_trainer
from astraflow.workflows import Roles
from astraflow.workflows.verifiers_environment import VerifiersEnvironment, tasks
from storage import open_store
from storage.errors import ConfigError, EpisodeError
from tests.workflows.conftest import CHATML, Stage

pytestmark = pytest.mark.anyio

PLUGIN = '''
"""Sums, asked twice: the second turn must go on with the tokens of the first."""
from collections.abc import Iterable
import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Sums", "TwoTurns"]


class SumData(vf.TaskData):
    answer: str = ""


class Sum(vf.Task[SumData]):
    @vf.reward(weight=0.5)
    async def right(self, trace) -> float:
        said = trace.assistant_messages[-1].content or ""
        return float(self.data.answer in said)

    @vf.reward
    async def spoke(self, trace) -> float:
        return 1.0


class Sums(vf.Taskset[Sum]):
    def load(self) -> Iterable[Sum]:
        for a in range(10):
            yield Sum(SumData(prompt=f"{a}+1=", answer=str(a + 1), name=f"sum-{a}"), self.config.task)


class TwoTurns(vf.Harness):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, *_):
        messages = [{"role": "user", "content": data.prompt}]
        async with httpx.AsyncClient(timeout=60) as client:
            for turn in range(2):
                answer = await client.post(endpoint.removesuffix("/") + "/chat/completions",
                    json={"model": ctx.model, "messages": messages}, headers={"Authorization": f"Bearer {secret}"})
                answer.raise_for_status()
                messages.append(answer.json()["choices"][0]["message"])
                messages.append({"role": "user", "content": "="})
        return ProgramResult(exit_code=0, stdout="", stderr="")
'''


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "sums_v1.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums_v1", raising=False)
    agent = {"runtime": {"type": "subprocess"}, "harness": {"id": "sums_v1"}}
    return {"taskset": {"id": "sums_v1"}, "agent": agent, "interception": {"type": "server"}}


async def test_its_conversations_are_recorded(env: dict[str, Any]) -> None:
    stage = Stage(CHATML).role("solver", "2", "3", "7", "8")
    gateway = Gateway(cfg.Serving(), stage.voices)
    played = VerifiersEnvironment(env=env)
    [first, *_] = problems = [ScoredProblem.of(p, lambda *_: 0.0) for p in tasks(0, env=env)]
    assert len(problems) == 10 and (first.prompt, first.id, first.meta) == ("0+1=", "sum-0", {"task": "0"})
    for number, reward in ((2, 1.5), (3, 1.0)):
        roles = Roles.of(stage.voices, "seed", gateway.doors)
        await played.play(problems[number], roles)
        [row] = roles.trajectories()
        assert row.reward == reward
        assert row.reward_parts == {"right": reward - 1.0, "spoke": 1.0}
        assert [turn.role for turn in row.turns] == ["assistant", "user", "assistant"]
    with pytest.raises(EpisodeError, match="no task 10"):
        await played.play(ScoredProblem(0, "x", "", "", {"task": "10"}), roles)
    played._serving.cancel()  # type: ignore[union-attr]
    await gateway.close()


def test_what_cannot_be_is_said(env: dict[str, Any]) -> None:
    for wrong in ({"taskset": {"id": "no_such_taskset"}}, {**env, "agent": {"max_turns": "many"}}):
        with pytest.raises(ConfigError, match="verifiers cannot make this environment"):
            VerifiersEnvironment(env=wrong)


@pytest.mark.e2e
async def test_it_trains(env: dict[str, Any], tmp_path: Path) -> None:
    store = open_store((tmp_path / "store").as_uri())
    options = {"env": env}
    config = create_run(
        store,
        cfg.RunConfig.model_validate(
            {
                "name": "sums",
                "store": store.url,
                "policies": {"solver": {"model": "tiny-qwen3", "sampling": {"max_tokens": 3}}},
                "workflow": {"name": "verifiers", "options": options},
                "problems": {"source": "astraflow.workflows.verifiers_environment:tasks", "options": options},
                "dataflow": {"group_size": 2},
                "trainer": {"steps": 3, "batch_size": 2},
            }
        ),
    )
    assert config.problem_count == 10
    threads = [
        asyncio.create_task(asyncio.to_thread(run_manager, store, config, holder="test")),
        asyncio.create_task(asyncio.to_thread(run_trainer, store, config, "solver")),
        asyncio.create_task(run_pool(store, config, "local")),
    ]
    await asyncio.wait_for(asyncio.gather(*threads), 240)
    run = open_run(f"{store.url}/sums")
    rows = run.trajectories().to_table().to_pylist()
    assert len(rows) >= 12 and run.figures().policies["solver"].steps == 3
    for row in rows:
        assert row["reward"] in (1.0, 1.5) and dict(row["reward_parts"])["spoke"] == 1.0
        assert [turn["role"] for turn in row["turns"]] == ["assistant", "user", "assistant"]
        sampled = [i for turn in row["turns"] if turn["role"] == "assistant" for i in range(turn["start"], turn["end"])]
        assert [i for i, mask in enumerate(row["loss_mask"]) if mask] == sampled

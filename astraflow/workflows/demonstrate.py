"""``demonstrate``: nothing is sampled; the data set's own answers become trajectories, for ``trainer.kind = "sft"``.

A problem is a prompt with its answer (``prompt``/``completion``), or a whole conversation (``messages``) of which every
answer of the assistant is trained on. So supervised training is a run like any other: leased, batched, resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from astraflow.raas.engine import Engine, Generation, GenerationRequest
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import workflow
from astraflow.workflows.render import Message, assistant, system, user
from astraflow.workflows.role import RoleHandle
from astraflow.workflows.runtime import Roles
from storage.errors import EpisodeError

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate


@workflow(roles=["solver"])
async def demonstrate(problem: ScoredProblem, roles: Roles, *, system_prompt: str = "") -> None:
    """Recite the problem's answers in their conversation; ``system_prompt`` goes before one that has none."""
    messages = conversation(problem, system_prompt)
    handle = roles.solver
    voice = handle.voice
    stop_id = int(voice.renderer.tokenizer.eos_token_id)
    said = [[*voice.renderer.encode(str(m["content"])), stop_id] for m in messages if m["role"] == "assistant"]
    reciter = RoleHandle(handle.name, replace(voice, engine=_Recital(voice.engine, iter(said))), seed="")
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            await reciter.chat(messages[:number])
    reciter.give(1.0)
    handle.sequences.extend(reciter.sequences)


def conversation(problem: ScoredProblem, system_prompt: str = "") -> list[Message]:
    """The messages that a problem stands for. Raises ``EpisodeError`` if no answer of the assistant is among them."""
    told = problem.meta.get("messages")
    messages: list[Message] = json.loads(told) if told else [user(problem.prompt), assistant(problem.answer)]
    if system_prompt and messages[0]["role"] != "system":
        messages = [system(system_prompt), *messages]
    if not any(message["role"] == "assistant" for message in messages[1:]):
        raise EpisodeError(
            "the conversation has no answer of the assistant",
            where=f"problem {problem.id}",
            remedy='A line needs "messages" with one, or "prompt" and "completion"',
            kind="workflow",
        )
    return messages


@dataclass(frozen=True, slots=True)
class _Recital:
    """An engine that says what it is given, one answer after the other, as if the present weights had."""

    engine: Engine
    answers: Iterator[list[int]]

    @property
    def version(self) -> int:
        return self.engine.version

    async def generate(self, request: GenerationRequest) -> Generation:
        ids = next(self.answers)
        return Generation(ids, [0.0] * len(ids), [self.version] * len(ids), "stop")

    async def load(self, update: WeightUpdate) -> None:
        await self.engine.load(update)

    async def close(self) -> None:
        """The engine itself goes on."""

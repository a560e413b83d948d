"""Token in, token out: what was sampled is what is trained on. Each way to get that wrong is put in, and seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from astraflow.raas.engine import Generation, GenerationRequest
from astraflow.trajectory import Trajectory
from astraflow.workflows import Roles, user
from astraflow.workflows.render import Message, Renderer
from astraflow.workflows.role import RoleHandle, Voice
from astraflow.workflows.sequence import Asked
from astraflow.workflows.sequence import Sequence as TokenSequence

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]


class AnswersTokenisedAgain(RoleHandle):
    """The bug: an answer is kept as the tokens of its text."""

    def _read(self, turn: Asked, request: GenerationRequest, generation: Generation) -> Any:
        text = self._voice.renderer.decode(generation.token_ids, special=True)
        return super()._read(turn, request, of_ids(generation, self._voice.renderer.encode(text)))


class ConversationsTokenisedAgain(RoleHandle):
    """The bug: each turn's prompt is the conversation's text, and the last turn is the trajectory."""

    def _sequence_for(self, messages: list[Message], text: str, *rest: Any) -> TokenSequence:
        return self._begin(self._voice.renderer.prompt(text), rest[-1])

    def trajectories(self) -> list[Trajectory]:
        return super().trajectories()[-1:]


class LossOnWhatOthersSaid(RoleHandle):
    """The bug: the loss mask is true for injected tokens too."""

    def trajectories(self) -> list[Trajectory]:
        rows = super().trajectories()
        for row in rows:
            row.loss_mask = [True] * len(row.loss_mask)
        return rows


class EndsThatNobodySampled(RoleHandle):
    """The bug: an answer that was cut by length gets a stop token."""

    def _read(self, turn: Asked, request: GenerationRequest, generation: Generation) -> Any:
        if generation.finish_reason == "length":
            generation = of_ids(generation, [*generation.token_ids, *request.stop_token_ids])
        return super()._read(turn, request, generation)


class EndsThatAreLost(RoleHandle):
    """The bug: the stop token that ended an answer is left out."""

    def _read(self, turn: Asked, request: GenerationRequest, generation: Generation) -> Any:
        kept = [i for i in generation.token_ids if i not in request.stop_token_ids]
        return super()._read(turn, request, of_ids(generation, kept))


class AlwaysGoesOn(RoleHandle):
    """The bug: a conversation goes on in its sequence though the template has rewritten what was said."""

    def _injected(self, mark: Any, messages: list[Message], tools: Any) -> list[int] | None:
        renderer: Renderer = self._voice.renderer
        return renderer.encode(renderer.text(messages[mark.messages :], tools))


def of_ids(generation: Generation, ids: Sequence[int]) -> Generation:
    count = len(ids)
    return replace(generation, token_ids=list(ids), logprobs=[-1.0] * count, versions=[0] * count)


def with_handle(voice: Voice, handle: type[RoleHandle]) -> Voice:
    class Other(Voice):
        def handle(self, name: str, seed: str) -> RoleHandle:
            return handle(name, self, seed)

    return Other(**{field.name: getattr(voice, field.name) for field in fields(voice)})


async def check(make: MakeStage, template: str, handle: type[RoleHandle], *, rows: int) -> None:
    """A conversation of four answers: an ambiguous one, one with thoughts, one that is cut, one that ends.

    The tokenizer would say «ab» with one id where two were sampled. Every answer's ids stand unchanged under the loss
    and nothing else does, in the rows that the model saw: each prompt is its row so far and reads as the template does.
    """
    play = make(template)
    a, b = play.ids("a") + play.ids("b")
    assert play.ids("ab") != [a, b]
    spoken = [[a, b, play.stop_id], [*play.ids("<think>hm</think>c"), play.stop_id], [a, b], [b, play.stop_id]]
    play.role("solver", *map(list, spoken))
    roles = Roles.of({"solver": with_handle(play.voices["solver"], handle)}, "seed")
    messages: list[Message] = []
    shown = []
    for number in range(len(spoken)):
        messages = [*messages, user(f"q{number}")]
        shown.append(play.renderer.text(messages))
        answer = await roles.solver.chat(messages)
        answer.reward = 0
        messages = answer.messages
    found = roles.trajectories()
    turns = [(row, turn) for row in found for turn in row.turns if turn.role == "assistant"]
    assert [row.response_ids[turn.start : turn.end] for row, turn in turns] == spoken
    for row in found:
        told = [i for turn in row.turns if turn.role == "assistant" for i in range(turn.start, turn.end)]
        assert [i for i, mask in enumerate(row.loss_mask) if mask] == told
    prompts = [list(request.prompt_ids) for request in play.engines["solver"].requests]
    assert prompts == [row.prompt_ids + row.response_ids[: turn.start] for row, turn in turns]
    assert [play.text(prompt) for prompt in prompts] == shown
    assert len(found) == rows


async def test_what_was_sampled_is_what_is_trained_on(stage: MakeStage, chatml: str, strips_thinking: str) -> None:
    await check(stage, chatml, RoleHandle, rows=1)
    await check(stage, strips_thinking, RoleHandle, rows=2)  # the thoughts are gone from the third prompt on


@pytest.mark.parametrize(
    "bug",
    [
        AnswersTokenisedAgain,
        ConversationsTokenisedAgain,
        LossOnWhatOthersSaid,
        EndsThatNobodySampled,
        EndsThatAreLost,
        AlwaysGoesOn,
    ],
)
async def test_each_bug_would_be_seen(stage: MakeStage, strips_thinking: str, bug: type[RoleHandle]) -> None:
    with pytest.raises(AssertionError):
        await check(stage, strips_thinking, bug, rows=2)

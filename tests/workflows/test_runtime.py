"""Token exactness: what was sampled is what is trained on, whatever template and tokenizer do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.raas.scripted_engine import ScriptedEngine
from astraflow.trajectory import Trajectory
from astraflow.workflows import Roles, system, user
from astraflow.workflows.render import prompt_ids, stop_ids
from storage.errors import ConfigError, EngineError, EpisodeError

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]


def roles_of(stage: Any) -> Roles:
    return Roles.of(stage.voices, "seed")


async def test_one_answer_without_a_chat_template(stage: MakeStage) -> None:
    play = stage().role("solver", "640")
    roles = roles_of(play)
    answer = await roles.solver.chat([system("add "), user("12+34=")])
    answer.reward = 1
    [row] = roles.trajectories()
    assert answer.text == "640"
    assert play.text(row.prompt_ids) == "<bos>add 12+34="
    assert row.response_ids == [*play.ids("640"), play.stop_id]
    assert row.logprobs == [-1.0] * 4 and row.loss_mask == [True] * 4 and row.versions == [0] * 4
    assert (row.policy, row.role, row.slot, row.reward) == ("solver", "solver", 0, 1.0)
    assert [(t.role, t.start, t.end, t.finish_reason) for t in row.turns] == [("assistant", 0, 4, "stop")]


async def test_a_conversation_that_goes_on_keeps_its_tokens(stage: MakeStage, chatml: str) -> None:
    play = stage(chatml).role("solver", "one", "two")
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")])
    play.engines["solver"].version = 4
    second = await roles.solver.chat([*first.messages, user("b")])
    second.reward = 0.5
    [row] = roles.trajectories()
    whole = play.text(row.prompt_ids + row.response_ids)
    assert whole == "<user>\na<|end|>\n<assistant>\none<|end|>\n<user>\nb<|end|>\n<assistant>\ntwo<|end|>"
    injected = play.text([i for i, mask in zip(row.response_ids, row.loss_mask, strict=True) if not mask])
    assert injected == "\n<user>\nb<|end|>\n<assistant>\n"  # the template's «\n» after the sampled end is not lost
    assert play.engines["solver"].requests[1].prompt_ids == tuple(
        row.prompt_ids + row.response_ids[: row.turns[2].start]
    )
    assert [t.role for t in row.turns] == ["assistant", "user", "assistant"]
    start, end = row.turns[1].start, row.turns[1].end
    assert row.logprobs[start:end] == [0.0] * (end - start)
    assert row.versions[start - 1 : end + 1] == [0] * (end - start + 1) + [4]
    assert first.reward == 0.5 == row.reward


async def test_an_answer_cut_by_length_is_continued_with_the_templates_end(stage: MakeStage, chatml: str) -> None:
    play = stage(chatml).role("solver", "three", "x", max_tokens=3)
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")])
    assert (first.text, first.finish_reason) == ("thr", "length")
    second = await roles.solver.chat([*first.messages, user("b")])
    second.reward = 0
    [row] = roles.trajectories()
    assert play.text(row.prompt_ids + row.response_ids).startswith(
        "<user>\na<|end|>\n<assistant>\nthr<|end|>\n<user>\nb"
    )


async def test_sampled_ids_survive_though_their_text_has_others(stage: MakeStage, chatml: str) -> None:
    play = stage(chatml).role("solver", [], "x")
    sampled = [play.ids("a")[0], play.ids("b")[0], play.stop_id]  # the tokenizer itself would say «ab»
    assert play.ids("ab") != sampled[:2]
    play.role("solver", sampled, "x")
    roles = roles_of(play)
    first = await roles.solver.chat([user("q")])
    assert first.text == "ab"
    second = await roles.solver.chat([*first.messages, user("r")])
    second.reward = 0
    [row] = roles.trajectories()
    assert row.response_ids[:3] == sampled


async def test_a_template_that_strips_thinking_begins_a_new_sequence(stage: MakeStage, strips_thinking: str) -> None:
    play = stage(strips_thinking).role("solver", "<think>hm</think>one", "two")
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")])
    second = await roles.solver.chat([*first.messages, user("b")])
    first.reward, second.reward = 0.25, 0.75
    rows = roles.trajectories()
    assert [row.slot for row in rows] == [0, 1]
    assert [row.reward for row in rows] == [0.25, 0.75]
    assert play.text(rows[0].response_ids) == "<think>hm</think>one<|end|>"
    assert play.text(rows[1].prompt_ids) == "<user>\na<|end|>\n<assistant>\none<|end|>\n<user>\nb<|end|>\n<assistant>\n"
    assert all(all(row.loss_mask) for row in rows)


async def test_another_conversation_or_temperature_is_another_sequence(stage: MakeStage) -> None:
    play = stage().role("solver", "1", "2", "3", "4")
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")])
    answers = [
        first,
        await roles.solver.chat([user("a")]),
        await roles.solver.chat([*first.messages, user("b")], temperature=0.5),
        await roles.solver.complete("a"),
    ]
    for number, answer in enumerate(answers):
        answer.reward = number
    rows = roles.trajectories()
    assert [row.slot for row in rows] == [0, 1, 2, 3]
    assert [row.temperature for row in rows] == [1.0, 1.0, 0.5, 1.0]
    seeds = [request.seed for request in play.engines["solver"].requests]
    assert len(set(seeds)) == 4


async def test_answers_in_parallel_get_slots_and_draws_of_their_own(stage: MakeStage) -> None:
    play = stage().role("solver", "1", "2", "3")
    roles = roles_of(play)
    answers = await asyncio.gather(*(roles.solver.chat([user("a")]) for _ in range(3)))
    for answer in answers:
        answer.reward = 0
    assert [row.slot for row in roles.trajectories()] == [0, 1, 2]
    again = stage().role("solver", "1", "2", "3")
    twin = roles_of(again)
    await asyncio.gather(*(twin.solver.chat([user("a")]) for _ in range(3)))
    assert [r.seed for r in again.engines["solver"].requests] == [r.seed for r in play.engines["solver"].requests]


async def test_no_reward_is_never_zero(stage: MakeStage) -> None:
    for reward, frozen, fails in ((None, False, True), (float("nan"), False, True), (None, True, False)):
        play = stage().role("solver", "1", frozen=frozen)
        roles = roles_of(play)
        answer = await roles.solver.chat([user("a")])
        if reward is not None:
            answer.reward = reward
        if fails:
            with pytest.raises(EpisodeError) as caught:
                roles.trajectories()
            assert caught.value.kind == "reward"
        else:
            assert roles.trajectories()[0].reward == 0.0


async def test_an_episode_without_answers_fails(stage: MakeStage) -> None:
    with pytest.raises(EpisodeError) as caught:
        roles_of(stage().role("solver")).trajectories()
    assert caught.value.kind == "empty"


async def test_an_unknown_role_says_what_to_do(stage: MakeStage) -> None:
    with pytest.raises(AttributeError, match=r"no role 'judge' here, only \['solver'\]: declare it"):
        _ = roles_of(stage().role("solver")).judge


async def test_greedy_answers_count_at_temperature_one(stage: MakeStage) -> None:
    play = stage().role("solver", "1")
    roles = roles_of(play)
    answer = await roles.solver.chat([user("a")], temperature=0.0, max_tokens=7)
    answer.reward = 0
    [request] = play.engines["solver"].requests
    assert (request.temperature, request.max_tokens) == (0.0, 7)
    assert roles.trajectories()[0].temperature == 1.0


texts = st.text(alphabet="ab <>\n/|end", max_size=12)


@given(turns=st.lists(st.tuples(texts, texts, st.booleans()), min_size=1, max_size=4), plain=st.booleans())
@settings(max_examples=60, deadline=None)
def test_sampled_tokens_are_never_changed(stage: MakeStage, chatml: str, turns: list[Any], plain: bool) -> None:
    """Whatever is said, each answer's ids lie unchanged under a true mask, and each prompt is the row so far."""
    play = stage(None if plain else chatml)
    spoken = [[*play.ids(said), *([play.stop_id] if ends or not said else [])] for _, said, ends in turns]
    play.role("solver", *[list(ids) for ids in spoken])

    async def talk() -> list[Trajectory]:
        roles, messages = roles_of(play), []
        for asked, _, _ in turns:
            answer = await roles.solver.chat([*messages, user(asked)])
            answer.reward = 0
            messages = answer.messages
        return roles.trajectories()

    rows = asyncio.run(talk())
    sampled = [
        row.response_ids[turn.start : turn.end] for row in rows for turn in row.turns if turn.role == "assistant"
    ]
    assert sampled == spoken
    for row in rows:
        assert len(row.response_ids) == len(row.logprobs) == len(row.loss_mask) == len(row.versions)
        assert row.turns[0].start == 0 and row.turns[-1].end == len(row.response_ids)
        for turn in row.turns:
            assert set(row.loss_mask[turn.start : turn.end]) <= {turn.role == "assistant"}
    # Each answer's prompt is exactly the ids that stand before it in its row: nothing was tokenised again.
    assert [list(request.prompt_ids) for request in play.engines["solver"].requests] == [
        row.prompt_ids + row.response_ids[: turn.start]
        for row in rows
        for turn in row.turns
        if turn.role == "assistant"
    ]


def test_prompt_ids_are_what_a_role_is_asked_with(stage: MakeStage, chatml: str) -> None:
    for template, text in ((None, "<bos>hi"), (chatml, "<user>\nhi<|end|>\n<assistant>\n")):
        play = stage(template)
        assert play.text(prompt_ids(play.renderer.tokenizer, [user("hi")])) == text


def test_stop_ids(stage: MakeStage) -> None:
    tokenizer = stage().renderer.tokenizer
    eos = tokenizer.eos_token_id
    assert stop_ids(tokenizer, []) == {eos}
    assert stop_ids(tokenizer, ["</think>"], also=[5]) == {eos, 5, tokenizer.convert_tokens_to_ids("</think>")}
    with pytest.raises(ConfigError, match="'nope' is not one token"):
        stop_ids(tokenizer, ["nope"])
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="no token ends an answer"):
        stop_ids(tokenizer, [])


async def test_the_scripted_engine_ends(stage: MakeStage) -> None:
    play = stage().role("solver", "1")
    await play.engines["solver"].close()
    with pytest.raises(EngineError):
        await roles_of(play).solver.chat([user("a")])
    assert isinstance(play.engines["solver"], ScriptedEngine)

"""Tool calls, forks, resumed answers: whatever is said between, sampled ids stay, and others' tokens carry no loss."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.trajectory import Sampler
from astraflow.workflows import Roles, ToolCall, tool, user
from astraflow.workflows.tools import hermes, llama, plain
from storage.errors import EpisodeError

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
# Writes a call in its own words: with other spaces than the model.
TOOL_TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
CALL = 'let me<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'


def roles_of(stage: Any) -> Roles:
    return Roles.of(stage.voices, "seed")


async def test_a_tool_call_is_read_and_its_tokens_stay(stage: MakeStage) -> None:
    play = stage(TOOL_TEMPLATE).role("solver", CALL, "3")
    roles = roles_of(play)
    first = await roles.solver.chat([user("1+2")], tools=TOOLS)
    assert (first.content, first.text) == ("let me", CALL)
    [call] = first.tool_calls
    assert (call.name, call.arguments) == ("add", {"a": 1})
    second = await roles.solver.chat([*first.messages, tool("three", call)], tools=TOOLS)
    second.reward = 1
    [row] = roles.trajectories()
    assert row.response_ids[: len(play.ids(CALL)) + 1] == [*play.ids(CALL), play.stop_id]
    between = play.text([i for i, mask in zip(row.response_ids, row.loss_mask, strict=True) if not mask])
    assert between == "\n<tool>\nthree<|end|>\n<assistant>\n"
    assert [(t.role, t.tool) for t in row.turns] == [("assistant", ""), ("tool", "add"), ("assistant", "")]
    assert play.asked("solver")[0].startswith("<tools>")


async def test_a_harness_that_writes_the_same_in_another_way_goes_on(stage: MakeStage) -> None:
    """As OpenAI's clients send it back: no content as null, arguments as text, keys that say nothing."""
    play = stage(TOOL_TEMPLATE).role("solver", CALL[len("let me") :], "3")
    roles = roles_of(play)
    first = await roles.solver.chat([user("1+2")], tools=TOOLS)
    [call] = first.tool_calls
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    echoed = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [],
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }  # fmt: skip
    parts = [{"type": "text", "text": "1+2"}]
    answer = await roles.solver.chat(
        [{"role": "user", "content": parts}, echoed, {"role": "tool", "tool_call_id": call.id, "content": "3"}],
        tools=TOOLS,
    )
    answer.reward = 0
    [row] = roles.trajectories()
    assert [(t.role, t.tool) for t in row.turns] == [("assistant", ""), ("tool", "add"), ("assistant", "")]


async def test_a_rewritten_history_begins_anew(stage: MakeStage) -> None:
    play = stage(TOOL_TEMPLATE).role("solver", "one", "two", "three")
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")])
    edited = [user("a"), {"role": "assistant", "content": "ONE"}, user("b")]
    await roles.solver.chat(edited)
    await roles.solver.chat([*first.messages, user("b")], tools=TOOLS)  # other tools: another beginning
    roles.give(0)
    rows = roles.trajectories()
    assert [row.slot for row in rows] == [0, 1, 2]
    assert "ONE" in play.text(rows[1].prompt_ids)
    assert all(all(row.loss_mask) for row in rows)


async def test_a_conversation_forks_with_the_sampled_ids(stage: MakeStage, chatml: str) -> None:
    play = stage(chatml)
    sampled = [play.ids("a")[0], play.ids("b")[0], play.stop_id]  # the tokenizer itself would say «ab»
    play.role("solver", sampled, "x", "y", "z")
    roles = roles_of(play)
    first = await roles.solver.chat([user("q")])
    messages = first.messages
    left = await roles.solver.chat([*messages, user("left")])
    right = await roles.solver.chat([*messages, user("right")])
    warm = await roles.solver.chat([*left.messages, user("warmer")], temperature=0.5)
    left.reward, right.reward, warm.reward = 1, 2, 3
    rows = roles.trajectories()
    assert [row.reward for row in rows] == [1, 2, 3]
    assert rows[0].response_ids[:3] == sampled
    assert rows[1].prompt_ids[: len(rows[0].prompt_ids) + 3] == rows[0].prompt_ids + sampled
    assert play.text(rows[1].prompt_ids).endswith("<user>\nright<|end|>\n<assistant>\n")
    assert rows[2].prompt_ids[: len(rows[0].prompt_ids + rows[0].response_ids)] == (
        rows[0].prompt_ids + rows[0].response_ids
    )
    assert all(rows[1].loss_mask) and all(rows[2].loss_mask)  # trained on once: earlier answers are its prompt


async def test_an_answer_goes_on_after_a_search(stage: MakeStage, chatml: str) -> None:
    play = stage(chatml).role("solver", play_cut(stage, "<s>q</s>"), "so 4", "ok", stop=["</s>"])
    roles = roles_of(play)
    asked = await roles.solver.chat([user("?")])
    assert asked.finish_reason == "stop" and asked.text == "<s>q</s>"
    more = await roles.solver.resume(asked, "<i>2+2=4</i>", tool="search")
    assert more.messages[-1]["content"] == "<s>q</s><i>2+2=4</i>so 4"
    last = await roles.solver.chat([*more.messages, user("sure?")])
    last.reward = 1
    [row] = roles.trajectories()
    masked = [(t.role, t.tool) for t in row.turns]
    assert masked == [("assistant", ""), ("tool", "search"), ("assistant", ""), ("user", ""), ("assistant", "")]
    assert (
        play.text(row.response_ids) == "<s>q</s><i>2+2=4</i>so 4<|end|>\n<user>\nsure?<|end|>\n<assistant>\nok<|end|>"
    )
    with pytest.raises(EpisodeError, match="cannot be resumed"):
        await roles.solver.resume(asked, "late")
    assert row.sampler == Sampler(stop=("</s>",)) and len(row.seeds) == 3


def play_cut(stage: MakeStage, text: str) -> list[int]:
    return list(stage().ids(text))


async def test_a_served_answer_leaves_its_stop_text_out_and_still_goes_on(stage: MakeStage, chatml: str) -> None:
    play = stage(chatml).role("solver", play_cut(stage, "one STOP"), "two", stop=["STOP"])
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")], as_read=True)
    assert first.content == "one "
    second = await roles.solver.chat([*first.messages, user("b")], as_read=True)
    second.reward = 0
    [row] = roles.trajectories()
    assert play.text(row.response_ids) == "one STOP<|end|>\n<user>\nb<|end|>\n<assistant>\ntwo<|end|>"


@pytest.mark.parametrize("plain", [True, False])
async def test_tokens_that_no_message_shows_stay_where_they_were_sampled(
    stage: MakeStage, chatml: str, plain: bool
) -> None:
    play = stage(None if plain else chatml)
    pad = play.renderer.tokenizer.pad_token_id
    play.role("solver", [*play.ids("a"), pad, *play.ids("b"), play.stop_id], "two")
    roles = roles_of(play)
    first = await roles.solver.chat([user("q")])
    assert first.messages[-1]["content"] == "ab"
    second = await roles.solver.chat([*first.messages, user("r")])
    second.reward = 0
    [row] = roles.trajectories()
    assert row.response_ids[:4] == [*play.ids("a"), pad, *play.ids("b"), play.stop_id]


async def test_an_answer_that_never_came_leaves_nothing(stage: MakeStage, chatml: str) -> None:
    """A judge that timed out, and a turn that was too long: what was sampled before them stays whole."""
    play = stage(chatml).role("solver", "one", "two").role("judge", "late", frozen=True)
    play.engines["judge"]._delay_s = 60
    roles = roles_of(play)
    first = await roles.solver.chat([user("a")])
    play.engines["solver"]._script = fail
    with pytest.raises(EpisodeError, match="too long"):
        await roles.solver.chat([*first.messages, user("b")])
    with pytest.raises(EpisodeError, match="too long"):
        await roles.solver.chat([user("another")])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(roles.judge.chat([user("well?")]), 0.01)
    first.reward = 1
    [row] = roles.trajectories()
    assert row.response_ids == [*play.ids("one"), play.stop_id]
    assert [t.role for t in row.turns] == ["assistant"]


def fail(_: object) -> list[int]:
    raise EpisodeError("too long", kind="too_long")


async def test_a_turn_has_a_deadline_of_its_own(stage: MakeStage) -> None:
    play = stage().role("solver", "1")
    play.engines["solver"]._delay_s = 60
    object.__setattr__(play.voices["solver"], "turn_timeout_s", 0.01)
    with pytest.raises(EpisodeError) as caught:
        await roles_of(play).solver.chat([user("a")])
    assert caught.value.kind == "turn_timeout"


async def test_token_ids_that_go_on_continue_their_sequence(stage: MakeStage) -> None:
    play = stage().role("solver", "one", "two", "three")
    roles = roles_of(play)
    first = await roles.solver.generate(play.ids("a"))
    second = await roles.solver.generate([*play.ids("a"), *first.token_ids, *play.ids("b")])
    other = await roles.solver.generate([*play.ids("x"), *second.token_ids])
    second.reward = other.reward = 0
    rows = roles.trajectories()
    assert [row.slot for row in rows] == [0, 1]
    assert play.text(rows[0].response_ids) == "one<|end|>btwo<|end|>"
    assert [t.role for t in rows[0].turns] == ["assistant", "user", "assistant"]


@pytest.mark.parametrize("broken", ["{", '{"name": 3}', '{"name": "f", "arguments": 1}', "[]"])
def test_a_call_that_cannot_be_read_is_text(broken: str) -> None:
    text = f"<tool_call>{broken}</tool_call>"
    assert hermes(text) == (text, [])
    other = broken.replace("arguments", "parameters")
    assert llama(other) == (other, [])


def test_calls_are_read() -> None:
    two = '<tool_call>\n{"name": "f"}\n</tool_call>\n<tool_call>{"name": "g", "arguments": {"a": [1]}}</tool_call>'
    assert hermes(f"x {two}") == ("x", [("f", {}), ("g", {"a": [1]})])
    assert llama('<|python_tag|>{"name": "f", "parameters": {"x": 1}}') == ("", [("f", {"x": 1})])


names = st.text(min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=2)
)


@given(name=names, arguments=st.dictionaries(names, values, max_size=3))
def test_a_call_survives_the_way_through_a_client(name: str, arguments: dict[str, Any]) -> None:
    part = ToolCall("id", name, arguments).message_part()
    message = {"role": "assistant", "content": "", "tool_calls": [part]}
    sent = {**part, "function": {"name": name, "arguments": json.dumps(arguments)}}
    assert plain({"role": "assistant", "content": None, "tool_calls": [sent]}) == message == plain(message)
    said = json.dumps({"name": name, "arguments": arguments})
    if "</tool_call>" not in said:
        assert hermes(f"<tool_call>{said}</tool_call>") == ("", [(name, arguments)])

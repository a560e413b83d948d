"""The data set's own answers as trajectories."""

from __future__ import annotations

import json

import pytest

from astraflow.config import Problems
from astraflow.problems import Problem, load_problems
from astraflow.rewards import ScoredProblem, exact
from astraflow.workflows import BUILT_IN
from astraflow.workflows.runtime import Roles
from storage.errors import ConfigError, EpisodeError
from tests.workflows.conftest import CHATML, Stage

pytestmark = pytest.mark.anyio


def scored(**changes):
    return ScoredProblem.of(Problem(**{"index": 0, "id": "p", "prompt": "say", "answer": "yes"} | changes), exact)


async def played(stage, problem, **options):
    roles = Roles.of(stage.voices, "seed")
    await BUILT_IN["demonstrate"].bind(options).play(problem, roles)
    return roles.trajectories()


@pytest.mark.parametrize("template", [None, CHATML])
async def test_a_prompt_and_its_completion_are_one_trained_answer(template):
    stage = Stage(template).role("solver")
    (row,) = await played(stage, scored())
    assert row.prompt_ids == stage.renderer.prompt(stage.renderer.text([{"role": "user", "content": "say"}]))
    assert row.response_ids == [*stage.ids("yes"), stage.stop_id]
    assert row.loss_mask == [True] * 4 and row.versions == [0] * 4 and row.reward == 1.0


async def test_of_a_conversation_every_answer_is_trained_and_nothing_else():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two?"},
        {"role": "assistant", "content": "2"},
    ]
    stage = Stage(CHATML).role("solver")
    (row,) = await played(stage, scored(meta={"messages": json.dumps(messages)}))
    whole = stage.renderer.tokenizer.apply_chat_template(messages, tokenize=False)
    assert stage.text(row.prompt_ids + row.response_ids) == whole.removesuffix("\n")
    trained = [token for token, counts in zip(row.response_ids, row.loss_mask, strict=True) if counts]
    assert trained == [*stage.ids("1"), stage.stop_id, *stage.ids("2"), stage.stop_id]


async def test_a_system_prompt_goes_before():
    stage = Stage(CHATML).role("solver")
    (row,) = await played(stage, scored(), system_prompt="be brief")
    assert stage.text(row.prompt_ids).startswith("<system>\nbe brief")


async def test_a_conversation_without_an_answer_is_an_episode_error():
    stage = Stage(CHATML).role("solver")
    with pytest.raises(EpisodeError, match="no answer"):
        await played(stage, scored(meta={"messages": json.dumps([{"role": "user", "content": "x"}])}))


async def test_data_sets_of_both_forms_are_read(tmp_path):
    file = tmp_path / "data.jsonl"
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file.write_text(json.dumps({"prompt": "p", "completion": "c"}) + "\n" + json.dumps({"messages": talk}) + "\n")
    first, second = load_problems(Problems(source=str(file)), 0)
    assert (first.prompt, first.answer) == ("p", "c")
    assert (second.prompt, second.answer, json.loads(second.meta["messages"])) == ("a", "b", talk)
    for line in ({"messages": talk[:1]}, {"messages": "x"}, {"messages": [{"role": "user"}]}):
        file.write_text(json.dumps(line) + "\n")
        with pytest.raises(ConfigError):
            load_problems(Problems(source=str(file)), 0)

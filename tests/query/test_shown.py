"""One trajectory, token by token, as ``astraflow show`` has it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from astraflow.models import build_tiny_qwen3, upload_model_files
from astraflow.query import Run
from astraflow.query.shown import ShownTrajectory, ShownTurn, Token, find_trajectory
from infra.trajectory_view import page
from storage.errors import ConfigError


def printed(shown: ShownTrajectory, *, tokens: bool = False, color: bool = False) -> str:
    console = Console(width=160, force_terminal=color, no_color=not color, record=True, file=io.StringIO())
    console.print(page(shown, tokens=tokens))
    return console.export_text(styles=color)


def test_a_trajectory_is_found_with_what_became_of_it(run: Run) -> None:
    shown = find_trajectory(run, "3-1-0-solver-0")
    assert (shown.policy, shown.role, shown.reward, shown.reward_parts) == ("solver", "solver", 1.0, {"exact": 1.0})
    assert shown.state == "consumed"
    assert shown.tokens == [Token(id, "", -0.5, 0, True) for id in (4, 5, 6, 7)]
    assert (shown.facts["group_id"], shown.facts["attempt"], shown.facts["problem_id"]) == (3, 1, "103")
    dropped = find_trajectory(run, "2-0-1-solver-0")
    assert (dropped.state, dropped.reason) == ("dropped", "zero_advantage")


def test_texts_come_from_the_tokenizer_in_the_store(run: Run, tmp_path: Path) -> None:
    build_tiny_qwen3(tmp_path, seed=0)
    upload_model_files(run.store, run.keys, "solver", tmp_path)
    shown = find_trajectory(run, "0-0-1-solver-0")
    assert [token.text for token in shown.tokens] == ["1", "2", "3", "4"]
    assert shown.prompt == "<bos><eos>0"


@pytest.mark.parametrize("id", ["3-0-0-solver-0", "77-0-0-solver-0", "6-0-0-solver-0", "solver", "", "0-0-0-'; --"])
def test_what_was_not_admitted_does_not_show(run: Run, id: str) -> None:
    with pytest.raises(ConfigError, match="no trajectory") as caught:
        find_trajectory(run, id)
    assert "select trajectory_id" in caught.value.remedy


def conversation() -> ShownTrajectory:
    """Two answers around a tool's word; the second began with version 4 and went on with version 5."""
    texts = ["a", "b", "[", "T", "]", "c", "d", "e"]
    trained = [True, True, False, False, False, True, True, True]
    versions = [4, 4, 4, 4, 4, 4, 4, 5]
    return ShownTrajectory(
        trajectory_id="1-1-0-solver-0",
        run="r",
        policy="solver",
        role="writer",
        reward=0.75,
        reward_parts={"style": 0.25},
        state="consumed",
        reason="",
        prompt_ids=[1, 2],
        prompt="Why? ",
        tokens=[Token(i, text, -0.1, versions[i], trained[i]) for i, text in enumerate(texts)],
        turns=[
            ShownTurn("assistant", 0, 2, "stop", "", ""),
            ShownTurn("tool", 2, 5, "", "search", ""),
            ShownTurn("assistant", 5, 8, "length", "", ""),
        ],
        facts={"pool": "pool-a", "queue_s": 0.5},
    )


def test_the_page_tells_turns_versions_and_masks_apart() -> None:
    text = printed(conversation())
    assert "reward 0.75  style 0.25  part consumed" in text
    assert "assistant  2 tokens, 2 trained, version 4, mean log-prob -0.100, ended by stop" in text
    assert "tool  3 tokens, 0 trained, search" in text
    assert "assistant  3 tokens, 3 trained, version 4 to 5, mean log-prob -0.100, ended by length" in text
    assert "cd[v5]e" in text
    assert "[T]" in text
    styled = printed(conversation(), color=True)
    assert "\x1b[32mab" in styled or "\x1b[32ma" in styled
    assert "\x1b[2;35m" in styled  # the tool's words: dim, in their own colour


def test_each_token_has_a_line_if_wanted() -> None:
    rows = [line.split() for line in printed(conversation(), tokens=True).splitlines() if line[:1].isdigit()]
    assert rows[1] == ["0", "assistant", "0", "'a'", "-0.1000", "4", "yes"]
    assert rows[4] == ["3", "tool", "3", "'T'", "-0.1000", "4", "no"]
    assert rows[8][-2:] == ["5", "yes"]

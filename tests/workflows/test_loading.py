"""Choosing a workflow by config, what is said when that is wrong, and the guide's own example."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import astraflow.workflows
from astraflow.config import RunConfig
from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem, exact
from astraflow.workflows import Roles, load_workflow, workflow
from storage.errors import ConfigError

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]


def config(name: str, policies: tuple[str, ...] = ("solver",), **section: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "test",
            "policies": {policy: {"model": "tiny-qwen3"} for policy in policies},
            "problems": {"source": "addition"},
            "workflow": {"name": name, **section},
        }
    )


@workflow(roles=["solver"])
async def bare(problem: Any, roles: Any, *, depth: int = 1) -> None:
    """A workflow without demonstrations."""


class Own:
    roles = ("solver",)

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth

    async def play(self, problem: Any, roles: Any) -> None:
        """Nothing."""


async def undecorated(problem: Any, roles: Any) -> None:
    """Not a workflow."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """This module under a name that can be imported."""
    own = types.ModuleType("own_workflows")
    own.bare, own.Own, own.undecorated, own.made = bare, Own, undecorated, Own()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_workflows", own)
    return "own_workflows"


def test_own_workflows(module: str) -> None:
    assert load_workflow(config(f"{module}:bare", options={"depth": 3})).roles == ("solver",)
    own = load_workflow(config(f"{module}:Own", options={"depth": 3}))
    assert isinstance(own, Own) and own.depth == 3
    assert isinstance(load_workflow(config(f"{module}:made")), Own)


@pytest.mark.parametrize(
    ("name", "section", "where", "says"),
    [
        ("solv", {}, "workflow.name", "Did you mean 'solve'?"),
        ("no_such_module:x", {}, "workflow.name", "cannot be imported"),
        ("own_workflows:missing", {}, "workflow.name", "cannot be imported"),
        ("own_workflows:undecorated", {}, "workflow.name", "Decorate the coroutine with @workflow"),
        ("own_workflows:bare", {"options": {"deep": 3}}, "workflow.options", "It takes: depth"),
        ("own_workflows:Own", {"options": {"deep": 3}}, "workflow.options", "It takes: depth"),
        ("solve_and_verify", {}, "workflow.roles", "Add workflow.roles.verifier = one of: solver"),
        ("solve", {"roles": {"solvr": "solver"}}, "workflow.roles.solvr", "Did you mean 'solver'?"),
    ],
)
def test_what_is_wrong_is_said(module: str, name: str, section: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_workflow(config(name, **section))
    assert caught.value.where == where
    assert says in str(caught.value)


def test_one_policy_may_play_all_roles() -> None:
    flow = load_workflow(config("solve_and_verify", roles={"verifier": "solver"}))
    assert flow.roles == ("solver", "verifier")


def test_no_demonstrations_is_an_error_that_says_so(module: str) -> None:
    import random

    with pytest.raises(ConfigError, match="cannot warm a model up"):
        load_workflow(config(f"{module}:bare")).demonstrate(Problem(0, "p", "q", "a"), random.Random(0))


async def test_the_guide_runs(stage: MakeStage, chatml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(astraflow.workflows.__file__).with_name("GUIDE.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    own = types.ModuleType("guide_workflow")
    exec(compile(code, "GUIDE.md", "exec"), own.__dict__)
    monkeypatch.setitem(sys.modules, "guide_workflow", own)
    name = "guide_workflow:draft_and_review"
    flow = load_workflow(config(name, roles={"writer": "solver", "critic": "solver"}, options={"bonus": 0.25}))
    scene = stage(chatml).role("writer", "641", "640").role("critic", "one too many")
    roles = Roles.of(scene.voices, "seed")
    await flow.play(ScoredProblem.of(Problem(0, "p", "12+34=", "640"), exact), roles)
    writer, critic = roles.trajectories()
    assert (writer.reward, writer.reward_parts, critic.reward) == (1.0, {"draft": 0.0}, 1.25)
    assert critic.meta == {"helped": "True"}
    assert [turn.role for turn in writer.turns] == ["assistant", "user", "assistant"]
    assert "one too many" in scene.text(writer.response_ids)
    import random

    [shown] = flow.demonstrate(Problem(0, "p", "12+34=", "640"), random.Random(0))
    assert (shown.role, shown.completion) == ("writer", "640")

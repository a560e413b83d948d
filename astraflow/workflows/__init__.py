"""Workflows: who speaks, what they see and how reward is shared. ``GUIDE.md`` beside this file shows how to write one.

A workflow is a coroutine that plays one episode; changing it changes nothing else. This package imports without
torch, since a run's config is checked where nothing is trained.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any, cast

from astraflow.component import check_options, find
from astraflow.config import RunConfig
from astraflow.workflows import (
    demonstrate,
    environment_agent,
    multi_turn,
    outside,
    plan_and_solve,
    search_agent,
    solve,
    solve_and_select,
    solve_and_test,
    solve_and_verify,
)
from astraflow.workflows.definition import Demonstration, Workflow, WorkflowDefinition, workflow
from astraflow.workflows.render import assistant, system, user
from astraflow.workflows.runtime import RoleHandle, Roles, Voice
from astraflow.workflows.sequence import Answer
from astraflow.workflows.tools import ToolCall, tool
from astraflow.workflows.verifiers_environment import VerifiersEnvironment
from storage.errors import ConfigError

__all__ = [
    "Answer",
    "Demonstration",
    "RoleHandle",
    "Roles",
    "ToolCall",
    "Voice",
    "Workflow",
    "assistant",
    "load_workflow",
    "system",
    "tool",
    "user",
    "workflow",
]

BUILT_IN: dict[str, Any] = {
    "demonstrate": demonstrate.demonstrate,
    "solve": solve.solve,
    "solve_and_verify": solve_and_verify.solve_and_verify,
    "multi_turn": multi_turn.multi_turn,
    "solve_and_select": solve_and_select.solve_and_select,
    "solve_and_test": solve_and_test.solve_and_test,
    "plan_and_solve": plan_and_solve.plan_and_solve,
    "search_agent": search_agent.search_agent,
    "environment_agent": environment_agent.environment_agent,
    "outside": outside.outside,
    "harness": outside.harness,
    "verifiers": VerifiersEnvironment,
}


def load_workflow(config: RunConfig) -> Workflow:
    """The config's workflow with its options, every role of it with a policy. Raises ``ConfigError``."""
    section = config.workflow
    found = find(section.name, BUILT_IN, where="workflow.name")
    if isinstance(found, WorkflowDefinition):
        made: Any = found.bind(section.options)
    elif inspect.isclass(found):
        check_options(found, section.options, given=0, where="workflow.options")
        made = found(**section.options)
    else:
        made = found
        if section.options:
            raise ConfigError(
                f"{section.name!r} is an object that is made already, so it takes no options",
                where="workflow.options",
                remedy="Name its class, or a coroutine with @workflow(roles=[…]); or remove the options",
                kind="options",
            )
    if not (getattr(made, "roles", None) and inspect.iscoroutinefunction(getattr(made, "play", None))):
        raise ConfigError(
            f"{section.name!r} is not a workflow",
            where="workflow.name",
            remedy="Decorate the coroutine with @workflow(roles=[…]), or name a class with roles and async play",
            kind="workflow",
        )
    _check_roles(made.roles, config)
    return cast("Workflow", made)


def _check_roles(roles: tuple[str, ...], config: RunConfig) -> None:
    for role in roles:
        config.policy_of(role)
    for role in config.workflow.roles:
        if role not in roles:
            near = difflib.get_close_matches(role, roles, n=1)
            raise ConfigError(
                f"the workflow {config.workflow.name!r} has no role {role!r}",
                where=f"workflow.roles.{role}",
                remedy=(f"Did you mean {near[0]!r}? " if near else "") + f"Its roles: {', '.join(roles)}",
                kind="role",
            )

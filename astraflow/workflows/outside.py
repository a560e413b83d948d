"""``outside`` and ``harness``: an agent harness plays the episode through the pool's OpenAI-compatible server.

``outside`` offers each episode to whoever asks the pool for one (``POST /v1/episodes``): the harness lives elsewhere
and says at the end what the episode was worth. ``harness`` starts a program for each episode, as an agent is
started by hand: its environment says where the model is. What either asks of the model is recorded token by token.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence

from astraflow.raas.child_guard import Lifeline
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import workflow
from astraflow.workflows.runtime import Outcome, Roles
from storage.errors import EpisodeError

_PASSED = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
_KEPT = 2000  # characters of a program's output that an error shows


@workflow(roles=["solver"])
async def outside(problem: ScoredProblem, roles: Roles) -> None:
    """Let a harness elsewhere play, and reward what it did."""
    await settle(await roles.offered(problem), problem, roles)


@workflow(roles=["solver"])
async def harness(
    problem: ScoredProblem, roles: Roles, *, command: Sequence[str], pass_env: Sequence[str] = ()
) -> None:
    """Run ``command`` with the problem as JSON on its standard input.

    It finds the model by ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, under the name of the role. The last line of its
    output may be an outcome as JSON (``{"reward": 1.0}``); without one the last answer is scored. Of the pool's
    environment, which may hold keys, it gets what every program needs, and what ``pass_env`` names.
    """
    async with roles.served() as door:
        asked = {"id": problem.id, "prompt": problem.prompt, "meta": dict(problem.meta)}
        passed = {name: os.environ[name] for name in (*_PASSED, *pass_env) if name in os.environ}
        environment = {**passed, "OPENAI_BASE_URL": door.url, "OPENAI_API_KEY": door.key}
        said = await _run(command, json.dumps(asked).encode(), environment)
    await settle(_outcome(said), problem, roles)


async def settle(outcome: Outcome, problem: ScoredProblem, roles: Roles) -> None:
    """Reward the episode's conversations as the harness says. Raises ``EpisodeError`` if it could not play."""
    if outcome.error:
        raise EpisodeError(f"the harness failed: {outcome.error}", where=f"problem {problem.id}", kind="harness")
    spoken = [(name, s) for name, role in roles.handles.items() for s in role.sequences if s.was_sampled]
    for name, sequence in spoken:
        if name in outcome.rewards:
            sequence.reward = float(outcome.rewards[name])
        elif outcome.reward is not None:
            sequence.reward = float(outcome.reward)
        else:
            sequence.reward = await problem.score(str(sequence.messages[-1]["content"]) if sequence.messages else "")
        sequence.trajectory.reward_parts.update(outcome.reward_parts)
        sequence.trajectory.meta.update(outcome.meta)


def _outcome(said: str) -> Outcome:
    """What the last line says, if it is an outcome."""
    last = said.strip().rpartition("\n")[2]
    try:
        found = json.loads(last)
        return Outcome(**found) if isinstance(found, dict) else Outcome()
    except (ValueError, TypeError):
        return Outcome()


async def _run(command: Sequence[str], given: bytes, environment: dict[str, str]) -> str:
    """The program's output; it and its children end with the episode, and with this process."""
    lifeline = Lifeline.for_command(command)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *lifeline.argv, pass_fds=lifeline.pass_fds, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
    finally:
        lifeline.started()
    try:
        output, errors = await process.communicate(given)
    finally:
        lifeline.cut()
    if process.returncode != 0:
        raise EpisodeError(
            f"{command[0]} ended with code {process.returncode}: {errors.decode(errors='replace')[-_KEPT:]}",
            where="workflow.options.command",
            kind="harness",
        )
    return output.decode(errors="replace")

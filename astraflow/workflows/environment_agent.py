"""``environment_agent``: a model acts in a text environment, one action a message, until it is done or out of turns.

The environment says what is there and, where it knows, what can be done; the model ends a message in
``<action>…</action>``, or its last line is the action. The reward is score × ``discount`` ** (actions − 1), or
``failure`` if the score is not above 0. An environment that breaks fails the episode.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from astraflow.component import find
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import workflow
from astraflow.workflows.render import Message, system, user
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import fill
from astraflow.workloads.environments import BUILT_IN, Environments, Observation

SYSTEM = "You act in a text world. Think, then end with one action as <action>action</action>."
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)


@workflow(roles=["agent"])
async def environment_agent(
    problem: ScoredProblem,
    roles: Roles,
    *,
    environment: str,
    environment_options: dict[str, Any] | None = None,
    turns: int = 30,
    discount: float = 0.99,
    failure: float = -0.1,
    show_actions: bool = True,
    history: int = 0,
    system_prompt: str = SYSTEM,
    prompt: str = "{observation}",
) -> None:
    """At most ``turns`` actions. ``history`` > 0 shows only the last so many turns, each then a sequence of its own."""
    worlds = load_environments(environment, json.dumps(environment_options or {}, sort_keys=True))
    answers = []
    async with worlds.play(problem) as world:
        seen = await world.reset()
        begun: list[Message] = [system(system_prompt), user(fill(prompt, observation=_shown(seen, show_actions)))]
        messages = begun
        taken = 0
        while taken < turns and not seen.done:
            answer = await roles.agent.chat(messages)
            answers.append(answer)
            taken += 1
            seen = await world.step(read_action(answer.text))
            messages = [*answer.messages, user(_shown(seen, show_actions))]
            if history:
                messages = [*begun, *messages[len(begun) :][-2 * history :]]
    reward = seen.score * discount ** (taken - 1) if seen.score > 0 else failure
    for answer in answers:
        answer.reward = reward
        answer.reward_parts.update(score=seen.score, actions=float(taken))


def read_action(text: str) -> str:
    """The action of a message: the last tagged one, else its last line; empty if there is none."""
    tagged = _ACTION.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _shown(seen: Observation, show_actions: bool) -> str:
    if not (show_actions and seen.actions):
        return seen.text
    return f"{seen.text}\nYou can: {', '.join(seen.actions)}"


@lru_cache
def load_environments(name: str, options: str) -> Environments:
    """The environments of a built-in name or import path, one set for all episodes; ``options`` are JSON."""
    made: Environments = find(BUILT_IN.get(name, name), {}, where="workflow.options.environment")(**json.loads(options))
    return made

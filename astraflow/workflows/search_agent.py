"""``search_agent``: a model asks a retriever in turns, then answers; the reward is F1 × format.

What it says ends in ``<search>…</search>`` or ``<answer>…</answer>``; results come back in
``<information>…</information>``, as injected tokens that carry no loss. The format is right if every turn held exactly
one of the two and nothing after it. A retriever that fails, fails the episode: no result is not an empty result.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from astraflow.component import find
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import workflow
from astraflow.workflows.render import system, user
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import fill
from astraflow.workloads.search.corpus import Passage
from astraflow.workloads.search.retrieve import BUILT_IN, Retriever
from astraflow.workloads.search.score import accepted, exact_match, f1

SYSTEM = (
    "Answer the question. Think first. To look something up write <search>words</search>; the results come back in "
    "<information></information>. Search as often as you need. Then give a short answer as <answer>answer</answer>."
)
AGAIN = "Write <search>words</search> to look something up, or <answer>answer</answer> to answer."
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


@workflow(roles=["searcher"])
async def search_agent(
    problem: ScoredProblem,
    roles: Roles,
    *,
    retriever: str = "foldoc",
    retriever_options: dict[str, Any] | None = None,
    turns: int = 6,
    results: int = 3,
    characters: int = 1200,
    system_prompt: str = SYSTEM,
    prompt: str = "{prompt}",
) -> None:
    """At most ``turns`` messages; ``results`` passages of at most ``characters`` characters each a search."""
    found = load_retriever(retriever, json.dumps(retriever_options or {}, sort_keys=True))
    messages = [system(system_prompt), user(fill(prompt, prompt=problem.prompt))]
    well_formed, searches, said = True, 0, ""
    answers = []
    for _ in range(turns):
        answer = await roles.searcher.chat(messages)
        answers.append(answer)
        action, argument, proper = read_action(answer.text)
        well_formed = well_formed and proper
        if action == "answer":
            said = argument
            break
        if action == "search":
            searches += 1
            passages = await found.search(argument, results)
            reply = f"<information>{show(passages, characters)}</information>"
        else:
            reply = AGAIN
        messages = [*answer.messages, user(reply)]
    reached = f1(said, accepted(problem))
    for answer in answers:  # one conversation, unless the template rewrote it
        answer.reward = reached * well_formed
        answer.reward_parts.update(
            f1=reached, em=exact_match(said, accepted(problem)), format=float(well_formed), searches=float(searches)
        )


def read_action(text: str) -> tuple[str, str, bool]:
    """The last action of a message (``search``, ``answer`` or nothing), its argument, and whether it is well formed."""
    found = list(_ACTION.finditer(text))
    if not found:
        return "", "", False
    last = found[-1]
    proper = len(found) == 1 and not text[last.end() :].strip() and bool(last[2].strip())
    return last[1], last[2].strip(), proper


def show(passages: list[Passage], characters: int) -> str:
    """Passages as a model reads them; a text that looks like a tag of ours cannot end the block."""
    lines = [f"({place}) {p.title}: {p.text[:characters]}" for place, p in enumerate(passages, start=1)]
    return "\n".join(lines).replace("</information>", "") or "nothing was found"


@lru_cache
def load_retriever(name: str, options: str) -> Retriever:
    """The retriever of a built-in name or import path, one for all episodes; ``options`` are JSON."""
    made: Retriever = find(BUILT_IN.get(name, name), {}, where="workflow.options.retriever")(**json.loads(options))
    return made

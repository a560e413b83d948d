"""Scoring short answers as SQuAD does: normalised words, exact match and F1, the best over the accepted answers.

``yes``, ``no`` and ``noanswer`` are right or wrong as a whole: half of «yes» is nothing.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable

from astraflow.problems import Problem

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE = {"yes", "no", "noanswer"}


def normalised(text: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(said: str, accepted: Iterable[str]) -> float:
    """1 if the answer is one of the accepted ones."""
    return float(normalised(said) in {normalised(answer) for answer in accepted})


def f1(said: str, accepted: Iterable[str]) -> float:
    """The best F1 of words over the accepted answers."""
    return max((_f1(normalised(said), normalised(answer)) for answer in accepted), default=0.0)


def _f1(said: str, answer: str) -> float:
    if said in _WHOLE or answer in _WHOLE:
        return float(said == answer)
    given, right = said.split(), answer.split()
    common = sum((Counter(given) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(given), common / len(right)
    return 2 * precision * recall / (precision + recall)


def f1_reward(problem: Problem, text: str) -> float:
    """The reward ``f1``: of a whole text, for questions that are answered without a search."""
    return f1(text, accepted(problem))


def accepted(problem: Problem) -> list[str]:
    """All right answers of a problem: ``meta["answers"]``, or its answer."""
    listed: list[str] = json.loads(problem.meta.get("answers", "[]"))
    return listed or [problem.answer]

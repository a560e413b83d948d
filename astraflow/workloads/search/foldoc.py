"""Questions that need two articles, made from the cross-references of a dictionary.

The entry A refers to B, and B to C. The question names A, describes B and C by the words of their entries with
their names taken out, and asks for C: a search for A finds B's name, a search for B finds C's.
"""

from __future__ import annotations

import json
import random
import re

from astraflow.problems import Problem
from astraflow.workloads.search.corpus import Passage, links, read_corpus

_MARK = re.compile(r"<[^>]*>|\([^)]*\)|\[[^\]]*\]|[{}]")
_WORDS = 12


def questions(seed: int, *, count: int = 512, source: str = "foldoc") -> list[Problem]:
    """``count`` questions, or as many as the corpus has chains for."""
    passages = read_corpus(source)
    by_title = {passage.title.lower(): passage for passage in reversed(passages)}
    starts = list(passages)
    random.Random(f"foldoc/{seed}").shuffle(starts)
    problems: list[Problem] = []
    for start in starts:
        if len(problems) == count:
            break
        chain = _chain(start, by_title, random.Random(f"{seed}/{start.title}"))
        if chain is not None:
            problems.append(_problem(len(problems), *chain))
    return problems


def _chain(start: Passage, by_title: dict[str, Passage], rng: random.Random) -> tuple[Passage, Passage, Passage] | None:
    for middle in _linked(start, by_title, rng):
        for end in _linked(middle, by_title, rng):
            if end.title not in (start.title, middle.title) and end.title.lower() not in start.text.lower():
                return start, middle, end
    return None


def _linked(passage: Passage, by_title: dict[str, Passage], rng: random.Random) -> list[Passage]:
    """The articles that one refers to and that can be described, in an order drawn by ``rng``."""
    titles = list(dict.fromkeys(title.lower() for title in links(passage.text)))
    found = [by_title[title] for title in titles if title in by_title]
    found = [other for other in found if other.title != passage.title and len(_described(other).split()) >= _WORDS // 2]
    rng.shuffle(found)
    return found


def _described(passage: Passage) -> str:
    """The first words of an article without its name, its marks and its links' braces."""
    text = _MARK.sub(" ", passage.text)
    text = re.sub(re.escape(passage.title), "…", text, flags=re.IGNORECASE)
    return " ".join(text.split()[:_WORDS])


def _problem(index: int, start: Passage, middle: Passage, end: Passage) -> Problem:
    prompt = (
        f"The entry «{start.title}» refers to a term whose entry begins: «{_described(middle)}». That entry refers to "
        f"another term, whose entry begins: «{_described(end)}». What is this last term called?"
    )
    meta = {"answers": json.dumps([end.title]), "path": json.dumps([start.title, middle.title, end.title])}
    return Problem(index, f"foldoc-{index}", prompt, end.title, meta)

"""The answer in a text: what the last ``\\boxed{…}`` holds, its braces matched.

A library that collects all boxes would merge a guess and its correction into a set. A box that is not closed was
cut off, and is no answer.
"""

from __future__ import annotations

import re

LONGEST = 512
"""Characters of an answer that is looked at; a longer one is no answer."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NUMBER = re.compile(r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|[-−]?\.\d+")


def boxed(text: str) -> str | None:
    """What stands in the last box, or None if there is none, or it is not closed or too long."""
    boxes = list(_BOX.finditer(text))
    inside = _to_closing_brace(text, boxes[-1].end()) if boxes else None
    return inside.strip() if inside is not None and len(inside) <= LONGEST else None


def last_number(text: str) -> str | None:
    """The last number, for data sets whose models do not box."""
    found = _NUMBER.findall(text)
    return found[-1] if found and len(found[-1]) <= LONGEST else None


def _to_closing_brace(text: str, start: int) -> str | None:
    depth, place = 1, start
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 2  # an escaped brace is no brace
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start:place]
        place += 1
    return None

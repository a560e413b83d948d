"""Answers in a normal form, and the comparison that needs no algebra: equal strings, exact numbers, lists of those.

The form drops what says nothing about the value (spacing, dollars, degrees, units in text, the sign of per cent, a
variable before ``=``) and writes one thing one way (``\\dfrac12`` is ``\\frac{1}{2}``). Rules that decide what a
symbolic library gets wrong: ``10%`` is 10 and not 0.1, ``(1,2)`` is not ``1,2``, and ``(B)`` is the choice ``B``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_DROPPED = re.compile(
    r"\\left|\\right|\\[!,;:> ]|\\quad|\\qquad|\\displaystyle|\\limits|~|\$|\\\$|\\%|%|\^\s*\{?\s*\\circ\s*\}?|\\degree"
    r"|\\(?:big|Big|bigg|Bigg)[lr]?(?![A-Za-z])"
)
_STYLED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname|textrm|boxed)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d})])\s*\\(?:text|mathrm|mbox|textrm)\s*\{\s*[A-Za-z][^{}\d]*\}(?:\^\{?[23]\}?)?\s*$")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")
_HALF_FRACTION = re.compile(r"\\frac\s*(?:(\{[^{}]*\})\s*(\w)|(\w)\s*(\{[^{}]*\}))")
_ROOT = re.compile(r"\\sqrt\s*(\w)")
_THOUSANDS = re.compile(r"(?<![\d.])(\d{1,3})((?:,\d{3})+)(?![\d,])")
_CHOICE = re.compile(r"\(?([A-J])\)?[.:]?")
_NAMED = re.compile(r"^(?:[a-zA-Z]|\\[a-z]+|[a-zA-Z]\([a-z]\)|[a-zA-Z]_\{?\w+\}?)=")
_NUMBER = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?")
_FRACTION = re.compile(r"([+-]?)(\d*)\\frac\{([+-]?\d+(?:\.\d+)?)\}\{([+-]?\d+(?:\.\d+)?)\}")
_SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)(?:\\times|\\cdot|\*)10\^(?:\{([+-]?\d{1,4})\}|(\d))")
_OPEN = {"(": ")", "[": "]", "\\{": "\\}"}
_LONGEST_NUMBER = 400


def normal(answer: str) -> str:
    """The normal form of an answer."""
    text = answer.strip().strip("$").strip()
    text = text.replace("−", "-").replace("{,}", ",").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = text.replace("\\cfrac", "\\frac").replace("\\leq", "\\le").replace("\\geq", "\\ge").replace("\\neq", "\\ne")
    text = text.replace("\\lbrace", "\\{").replace("\\rbrace", "\\}").replace("\\infin", "\\infty").replace("\\%", "")
    text = _UNIT.sub("", text)
    for _ in range(3):  # nested styles
        text = _STYLED.sub(r"\1", text)
    text = _DROPPED.sub("", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _HALF_FRACTION.sub(_braced, text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = re.sub(r"\s+", "", text)
    text = _thousands(text)
    text = text.removesuffix(".") if not text.endswith("..") else text
    choice = _CHOICE.fullmatch(text)
    if choice:
        return choice[1]
    return text


def without_name(text: str) -> str:
    """A normal form without the variable that it gives a value to: ``x=5`` is ``5``."""
    return _NAMED.sub("", text) if text.count("=") == 1 else text


def number(text: str) -> Fraction | None:
    """The exact number that a normal form is, or None."""
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        if found := _NUMBER.fullmatch(text):
            value = Fraction(found[2]) / Fraction(found[3] or 1)
            return -value if found[1] == "-" else value
        if found := _FRACTION.fullmatch(text):
            value = Fraction(found[2] or 0) + Fraction(found[3]) / Fraction(found[4])
            return -value if found[1] == "-" else value
        if found := _SCIENTIFIC.fullmatch(text):
            return Fraction(found[1]) * Fraction(10) ** int(found[2] or found[3])
    except ZeroDivisionError:
        return None
    return None


@dataclass(frozen=True, slots=True)
class Items:
    """An answer of several: with its brackets and in order, or bare (``1,2`` and ``\\{1,2\\}``) and in any order."""

    brackets: str
    items: tuple[str, ...]


def items(text: str) -> Items | None:
    """The parts of a list, tuple, interval or set; None for a single value."""
    for opening, closing in _OPEN.items():
        for end in {closing, ")", "]"} if opening != "\\{" else {closing}:
            if text.startswith(opening) and text.endswith(end) and _encloses(text, opening, end):
                inside = _split(text[len(opening) : -len(end)])
                brackets = "" if opening == "\\{" else opening + end
                return Items(brackets, inside) if len(inside) > 1 or not brackets else None
    inside = _split(text.replace("or", ",").replace("and", ",") if re.search(r"\d(?:or|and)", text) else text)
    return Items("", inside) if len(inside) > 1 else None


def _encloses(text: str, opening: str, closing: str) -> bool:
    """Whether the bracket at the beginning is the partner of the one at the end."""
    depth = 0
    place = 0
    while place < len(text):
        if text.startswith(("\\{", "(", "[", "{"), place):
            depth += 1
        elif text.startswith(("\\}", ")", "]", "}"), place):
            depth -= 1
            width = 2 if text.startswith("\\}", place) else 1
            if depth == 0:
                return place + width == len(text)
        place += 2 if text[place] == "\\" else 1
    return False


def _split(text: str) -> tuple[str, ...]:
    """Split at the commas that no bracket encloses."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(text):
        character = text[place]
        step = 2 if character == "\\" else 1
        word = text[place : place + step]
        depth += (word in ("(", "[", "{", "\\{")) - (word in (")", "]", "}", "\\}"))
        if character in ",;" and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        place += step
    return tuple(part for part in (*parts, text[start:]) if part)


def _thousands(text: str) -> str:
    """``1,234`` is one number, unless brackets make it a list: ``(1,234)`` stays a pair."""
    if text.startswith(("(", "[", "\\{")):
        return text
    return _THOUSANDS.sub(lambda found: found[1] + found[2].replace(",", ""), text)


def _braced(found: re.Match[str]) -> str:
    above, below = found[1] or "{" + (found[3] or "") + "}", found[4] or "{" + (found[2] or "") + "}"
    return f"\\frac{above}{below}"

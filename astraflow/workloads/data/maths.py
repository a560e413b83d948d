"""Maths data sets by their published field names. The answer is what a box should hold."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from astraflow.workloads.data.rows import Row, first, rest, text_of
from astraflow.workloads.maths.extract import boxed

_DAPO = re.compile(
    r"^Solve the following math problem step by step\..*?where \$Answer is the answer to the problem\.\s*(.*?)\s*"
    r"Remember to put your answer on its own line after \"Answer:\"\.\s*$",
    re.DOTALL,
)


def gsm8k(values: Mapping[str, Any]) -> Row:
    """``question``, ``answer`` that ends in ``#### 72``."""
    solution, mark, answer = str(values["answer"]).rpartition("####")
    if not mark:
        raise ValueError("an answer ends in «#### number»")
    return Row(values["question"], answer.strip().replace(",", ""), meta={"solution": solution.strip()})


def math(values: Mapping[str, Any]) -> Row:
    """MATH and MATH-500: ``problem``, ``solution``, perhaps ``answer``; without one the solution's box is it."""
    return _boxed_row(values, ("problem",), "unique_id")


def aime(values: Mapping[str, Any]) -> Row:
    """AIME 24 and 25: ``problem`` (``Problem``, ``question``), ``answer`` (``Answer``), ``id`` (``ID``)."""
    return Row(
        first(values, "problem", "Problem", "question"),
        _answer(first(values, "answer", "Answer")),
        text_of(values.get("id", values.get("ID", ""))),
        rest(values, "year", "url"),
    )


def amc(values: Mapping[str, Any]) -> Row:
    """``problem``, ``answer`` as a number with ``.0``, ``id``."""
    return Row(first(values, "problem", "question"), _answer(values["answer"]), text_of(values.get("id", "")))


def minerva(values: Mapping[str, Any]) -> Row:
    """``problem`` or ``question``; ``answer``, or ``solution`` with a box."""
    return _boxed_row(values, ("problem", "question"), "idx")


def deepscaler(values: Mapping[str, Any]) -> Row:
    """``problem``, ``answer``, ``solution``."""
    return _boxed_row(values, ("problem",), "")


def dapo(values: Mapping[str, Any]) -> Row:
    """``prompt`` as messages, ``reward_model.ground_truth``; the frame around the problem is taken off."""
    said = values["prompt"]
    prompt = said if isinstance(said, str) else said[-1]["content"]
    frame = _DAPO.match(prompt)
    extra = values.get("extra_info") or {}
    answer = values["reward_model"]["ground_truth"]
    if isinstance(answer, str) and answer.startswith("["):
        answer = json.loads(answer)[0]
    return Row(frame[1] if frame else prompt, _answer(answer), str(extra.get("index", "")), rest(values, "data_source"))


def _boxed_row(values: Mapping[str, Any], prompts: tuple[str, ...], name: str) -> Row:
    answer = values.get("answer")
    if answer in (None, ""):
        answer = boxed(str(values["solution"]))
        if answer is None:
            raise ValueError("neither an answer nor a box in the solution")
    kept = rest(values, "solution", "subject", "level", "type")
    return Row(first(values, *prompts), _answer(answer), text_of(values.get(name, "")), kept)


def _answer(value: Any) -> str:
    text = text_of(value)
    return boxed(text) or text

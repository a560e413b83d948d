"""The formats of JSONL files by name."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path

from astraflow.problems import Problem
from astraflow.workloads.data import code, maths, questions
from astraflow.workloads.data.rows import Read, read_rows
from storage.errors import ConfigError

FORMATS: dict[str, Read] = {
    "gsm8k": maths.gsm8k,
    "math": maths.math,
    "aime": maths.aime,
    "amc": maths.amc,
    "minerva": maths.minerva,
    "deepscaler": maths.deepscaler,
    "dapo": maths.dapo,
    "human-eval": code.human_eval,
    "mbpp": code.mbpp,
    "livecodebench": code.livecodebench,
    "codeforces": code.codeforces,
    "deepcoder": code.deepcoder,
    "hotpotqa": questions.hotpotqa,
    "asearcher": questions.asearcher,
}


def read_format(path: Path, *, format: str, limit: int = 0, suffix: str = "") -> list[Problem]:
    """The problems of a published file; ``suffix``, said after each prompt, asks for the form of an answer.

    Raises ``ConfigError``.
    """
    if format not in FORMATS:
        near = difflib.get_close_matches(str(format), FORMATS, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"there is no format {format!r}",
            where="problems.options.format",
            remedy=f"{guess}Formats: {', '.join(sorted(FORMATS))}",
            kind="unknown",
        )
    problems = read_rows(path, FORMATS[format], limit=limit)
    return (
        [dataclasses.replace(problem, prompt=problem.prompt + suffix) for problem in problems] if suffix else problems
    )

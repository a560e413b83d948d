"""The data set: problems from a JSONL file or a generator, frozen as one table when a run is created.

A problem's ``index`` is its row number; leases name problems by it. The same source, options and seed give the
same problems, so the same ``data_hash``, on every machine.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from astraflow import config as cfg
from astraflow.component import check_options, find
from astraflow.workloads import sources as workloads
from storage.errors import ConfigError, DataError

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", pa.string()),
        ("answer", pa.string()),
        ("meta", pa.map_(pa.string(), pa.string())),
    ]
)
_PROMPT_FIELDS = ("prompt", "question", "problem")
_WHERE = "problems.source"


@dataclass(frozen=True, slots=True)
class Problem:
    """One item of a data set. ``meta`` holds whatever else its line said, as text."""

    index: int
    id: str
    prompt: str
    answer: str
    meta: Mapping[str, str] = field(default_factory=dict)


def load_problems(config: cfg.Problems, seed: int) -> list[Problem]:
    """All problems of the source, in order. Raises ``ConfigError`` naming file and line."""
    if config.source in GENERATORS:
        generator = GENERATORS[config.source]
        check_options(generator, config.options, given=1, where="problems.options")
        return generator(seed, **config.options)
    if config.source in workloads.SOURCES:
        made = workloads.source(config.source)
        check_options(made, config.options, given=1, where="problems.options")
        return made(seed, **config.options)
    path = Path(config.source)
    if "format" in config.options and path.name.endswith((".jsonl", ".jsonl.gz")):
        from astraflow.workloads.data.formats import read_format  # noqa: PLC0415 - it imports this module

        check_options(read_format, config.options, given=1, where="problems.options")
        return read_format(path, **config.options)
    if path.suffix != ".jsonl" and ":" in config.source:
        own = find(config.source, GENERATORS, where=_WHERE)
        check_options(own, config.options, given=1, where="problems.options")
        return list(own(seed, **config.options))
    if path.suffix != ".jsonl":
        known = sorted([*GENERATORS, *workloads.SOURCES])
        raise ConfigError(
            f"{config.source!r} is neither a .jsonl file nor a built-in generator",
            where=_WHERE,
            remedy=f"Name a .jsonl file, 'package.module:function', or one of: {', '.join(known)}",
            kind="unknown",
        )
    if config.options:
        raise ConfigError(
            f"a file takes no options but format, there are: {', '.join(sorted(config.options))}",
            where="problems.options",
            remedy="Remove them, or say which published format it has: format = 'gsm8k'",
            kind="options",
        )
    return _read_jsonl(path)


def addition(seed: int, *, digits: int = 2, count: int = 4096) -> list[Problem]:
    """Sums of two ``digits``-digit numbers: prompt «12+34=», answer the sum's digits from the last on, «640».

    Reversed and padded to ``digits + 1``, so that a small model can carry as it writes. Pairs do not repeat.
    """
    pairs = (10**digits) ** 2 if isinstance(digits, int) and 1 <= digits <= 9 else 0
    if not isinstance(count, int) or not 1 <= count <= pairs:
        raise ConfigError(
            f"'addition' cannot make {count!r} problems of {digits!r} digits",
            where="problems.options",
            remedy="digits is 1 to 9, and count at most 100 ** digits",
            kind="options",
        )
    problems = []
    for index, pair in enumerate(random.Random(seed).sample(range(pairs), count)):
        a, b = divmod(pair, 10**digits)
        prompt = f"{a:0{digits}d}+{b:0{digits}d}="
        problems.append(Problem(index, prompt[:-1], prompt, f"{a + b:0{digits + 1}d}"[::-1]))
    return problems


GENERATORS: dict[str, Callable[..., list[Problem]]] = {"addition": addition}


def _read_jsonl(path: Path) -> list[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON strings may hold the other line ends of Unicode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the problem file cannot be read: {error}",
            where=f"{_WHERE} = {path}",
            remedy="Name a UTF-8 file with one JSON object a line; a recipe's path is relative to the recipe",
            kind="file",
        ) from error
    problems: list[Problem] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        problem = _parse_line(line, len(problems), f"{path}:{number}")
        if problem.id in first_line:
            raise ConfigError(
                f"the id {problem.id!r} is also on line {first_line[problem.id]}",
                where=f"{path}:{number}",
                remedy="Make ids unique, or leave them out",
                kind="duplicate",
            )
        first_line[problem.id] = number
        problems.append(problem)
    if not problems:
        raise ConfigError(
            "the problem file is empty", where=str(path), remedy="Put a problem on each line", kind="file"
        )
    return problems


def _ends_of(messages: Any, wrong: Callable[[str], ConfigError]) -> dict[str, str]:
    """The first question and the last answer of a conversation, which stand for it where one of each is shown."""
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages
    ):
        raise wrong('messages must be a list of {"role": …, "content": …}')
    asked = [m["content"] for m in messages if m["role"] == "user"]
    answered = [m["content"] for m in messages if m["role"] == "assistant"]
    if not asked or not answered:
        raise wrong("messages must hold something of the user and of the assistant")
    return {"prompt": asked[0], "answer": answered[-1]}


def _parse_line(line: str, index: int, where: str) -> Problem:
    """One line as a problem; ``where`` is ``file:line``."""

    def wrong(what: str) -> ConfigError:
        remedy = 'A line looks like {"prompt": "12+34=", "answer": "640"}, with an optional "id" and any other fields'
        return ConfigError(what, where=where, remedy=remedy, kind="line")

    try:
        fields: Any = json.loads(line)
    except ValueError as error:
        raise wrong(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise wrong(f"a JSON object is expected, not {type(fields).__name__}")
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise wrong("half of a surrogate pair, which is no text") from error
    if "messages" in fields:
        fields = {**_ends_of(fields["messages"], wrong), **fields}
    if "completion" in fields:
        fields.setdefault("answer", fields.pop("completion"))
    prompt_field = next((name for name in _PROMPT_FIELDS if name in fields), None)
    if prompt_field is None:
        raise wrong(f"no prompt; one of the fields {', '.join(_PROMPT_FIELDS)} must be there")
    prompt = fields.pop(prompt_field)
    if not isinstance(prompt, str) or not prompt:
        raise wrong(f"{prompt_field} must be a non-empty text")
    if "answer" not in fields:
        raise wrong("no answer")
    answer = fields.pop("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise wrong("answer must be a text or a number")
    problem_id = fields.pop("id", index)
    if isinstance(problem_id, bool) or not isinstance(problem_id, str | int) or problem_id == "":
        raise wrong("id must be a text or a whole number")
    meta = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return Problem(index, str(problem_id), prompt, str(answer), meta)


def problems_table(problems: list[Problem]) -> pa.Table:
    """The problems as a table of ``SCHEMA``; row number = index."""
    columns = {
        "id": [problem.id for problem in problems],
        "prompt": [problem.prompt for problem in problems],
        "answer": [problem.answer for problem in problems],
        "meta": [sorted(problem.meta.items()) for problem in problems],
    }
    return pa.table(columns, schema=SCHEMA)


def problems_from_table(table: pa.Table) -> list[Problem]:
    """Inverse of ``problems_table``. Raises ``DataError`` if it is another kind of table."""
    if not set(SCHEMA.names) <= set(table.column_names):
        raise DataError(
            f"not a table of problems: its columns are {', '.join(table.column_names)}",
            where="problems",
            remedy="The run's problems object was written by something else: create the run again",
            kind="undecodable",
        )
    rows = zip(*(table.column(name).to_pylist() for name in SCHEMA.names), strict=True)
    return [Problem(i, id_, prompt, answer, dict(meta)) for i, (id_, prompt, answer, meta) in enumerate(rows)]


def data_hash(problems: list[Problem]) -> str:
    """A digest of the problems' content and order, 32 hex digits; independent of platform and file format."""
    digest = hashlib.blake2b(digest_size=16)
    for problem in problems:
        row = [problem.id, problem.prompt, problem.answer, sorted(problem.meta.items())]
        digest.update(json.dumps(row, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()

"""Programming data sets by their published field names; their tests become one form of suite.

LiveCodeBench publishes its private tests as a pickle. It is never loaded: the one text in it is read out of its
opcodes.
"""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from astraflow.workloads.code.suite import CallCase, Calls, Checks, ProgramCase, Programs, Suite, to_json
from astraflow.workloads.data.rows import Row, first, rest, text_of

_UNPACKED_BYTES = 1 << 28


def human_eval(values: Mapping[str, Any]) -> Row | None:
    """``task_id``, ``prompt``, ``entry_point``, ``test`` with a function ``check``, ``canonical_solution``."""
    prompt, name = values["prompt"], values["entry_point"]
    # Tests use helpers that the prompt defines; the function itself must be the submission's.
    tests = f"{prompt}\n    pass\ndel {name}\n\n{values['test']}"
    suite = Checks(tests, ("check",), (name,), prefix=prompt)
    solution = prompt + values["canonical_solution"]
    return _row(prompt, solution, values["task_id"], suite, {"entry_point": name})


def mbpp(values: Mapping[str, Any]) -> Row | None:
    """``task_id``, ``text`` or ``prompt``, ``code``, ``test_list``, ``test_setup_code`` or ``test_imports``."""
    lines = [*values["test_list"], *values.get("challenge_test_list", [])]
    body = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    setup = values.get("test_setup_code") or "\n".join(values.get("test_imports", []))
    suite = Checks(f"{setup}\ndef check():\n{body}\n", ("check",))
    prompt = f"{first(values, 'text', 'prompt')}\nYour code should pass this test:\n{lines[0]}"
    return _row(prompt, values["code"], values["task_id"], suite)


def livecodebench(values: Mapping[str, Any]) -> Row | None:
    """``question_content``, ``starter_code``, ``public_test_cases``, ``private_test_cases``, ``metadata.func_name``."""
    cases = [*_cases(values["public_test_cases"]), *_cases(values.get("private_test_cases") or "[]")]
    metadata = values.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    suite = _suite(cases, metadata.get("func_name", ""))
    starter = values.get("starter_code") or ""
    prompt = values["question_content"] + (f"\n\nStart from:\n```python\n{starter}\n```" if starter else "")
    return _row(prompt, "", values["question_id"], suite, rest(values, "difficulty", "contest_date", "platform"))


def codeforces(values: Mapping[str, Any]) -> Row | None:
    """``description``, ``input_format``, ``output_format``, ``examples``, ``official_tests``; none: left out."""
    cases = [*(values.get("examples") or []), *(values.get("official_tests") or [])]
    parts = [values["description"]]
    for title, name in (("Input", "input_format"), ("Output", "output_format"), ("Note", "note")):
        if values.get(name):
            parts.append(f"{title}\n{values[name]}")
    for number, example in enumerate(values.get("examples") or [], start=1):
        parts.append(f"Example {number}\n{example['input']}\n->\n{example['output']}")
    return _row("\n\n".join(parts), "", values["id"], _suite(cases, ""), rest(values, "rating", "time_limit"))


def deepcoder(values: Mapping[str, Any]) -> Row | None:
    """``problem``, ``tests`` (a list of cases, or lists of inputs and outputs), ``solutions``, ``starter_code``."""
    tests = values["tests"]
    if isinstance(tests, str):
        tests = json.loads(tests)
    name = ""
    if isinstance(tests, Mapping):
        name = tests.get("fn_name") or ""
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        cases: list[Any] = [{"input": given, "output": expected} for given, expected in pairs]
    else:
        cases = list(tests)
        for case in cases[:1]:
            name = case.get("fn_name") or (case.get("metadata") or {}).get("func_name") or ""
    solutions = values.get("solutions") or [""]
    starter = values.get("starter_code") or ""
    prompt = values["problem"] + (f"\n\nStart from:\n```python\n{starter}\n```" if starter else "")
    return _row(prompt, str(solutions[0]), values.get("id", ""), _suite(cases, name))


def _row(
    prompt: str, solution: str, name: Any, suite: Suite | None, meta: Mapping[str, str] | None = None
) -> Row | None:
    if suite is None:
        return None
    return Row(prompt, solution, text_of(name), {**(meta or {}), "tests": to_json(suite)})


def _suite(cases: Iterable[Mapping[str, Any]], function: str) -> Suite | None:
    """A suite of published cases; None if there are none."""
    cases = list(cases)
    if not cases:
        return None
    if function:
        return Calls(function, tuple(CallCase(_arguments(case["input"]), _value(case["output"])) for case in cases))
    return Programs(tuple(ProgramCase(_text(case["input"]), _text(case["output"])) for case in cases))


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(value: Any) -> tuple[Any, ...]:
    """Arguments as a list, or as text with the JSON of one a line."""
    if isinstance(value, str):
        return tuple(json.loads(line) for line in value.splitlines() if line.strip())
    return tuple(value) if isinstance(value, list) else (value,)


def _value(value: Any) -> Any:
    """A result as it is, as a list of one, or as JSON text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _cases(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, list):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = json.loads(_text_of_pickle(value))
    if not isinstance(found, list):
        raise ValueError("test cases are a list")
    return found


def _text_of_pickle(packed: str) -> str:
    """The text that base64(zlib(pickle(text))) holds, without running the pickle."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(packed), _UNPACKED_BYTES)
    texts = [argument for _, argument, _ in pickletools.genops(data) if isinstance(argument, str)]
    if len(texts) != 1 or unpacker.unconsumed_tail:
        raise ValueError("packed test cases hold one text")
    return texts[0]

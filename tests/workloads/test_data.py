# ruff: noqa: E501 - tables
"""Published files are read by their field names; what is not as published is named by file and line."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from astraflow.config import Component, Problems
from astraflow.problems import Problem, load_problems
from astraflow.rewards import load_reward
from astraflow.workloads import packages
from astraflow.workloads.code import CallCase, Calls, Checks, ProgramCase, Programs, from_json
from astraflow.workloads.data.formats import FORMATS
from storage.errors import ConfigError


def read(folder: Path, format: str, *rows: Any, **options: Any) -> list[Problem]:
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return load_problems(Problems(source=str(path), options={"format": format, **options}), 0)


DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 1+1?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
MATHS: list[tuple[str, dict[str, Any], tuple[str, str, str]]] = [
    ("gsm8k", {"question": "q", "answer": "So <<1+1=2>>\n#### 1,234"}, ("q", "1234", "0")),
    ("math", {"problem": "p", "solution": "\\boxed{\\frac12}", "level": "Level 5", "type": "Algebra"}, ("p", "\\frac12", "0")),
    ("math", {"problem": "p", "solution": "s", "answer": "7", "unique_id": "test/a/1.json", "subject": "S", "level": 2},
     ("p", "7", "test/a/1.json")),
    ("aime", {"ID": "2024-I-1", "Problem": "p", "Solution": "s", "Answer": 204}, ("p", "204", "2024-I-1")),
    ("aime", {"id": 60, "problem": "p", "solution": "s", "answer": "204", "url": "u", "year": "2024"}, ("p", "204", "60")),
    ("aime", {"question": "p", "answer": "70"}, ("p", "70", "0")),
    ("amc", {"id": 0, "problem": "p", "answer": 142.0, "url": "u"}, ("p", "142", "0")),
    ("minerva", {"problem": "p", "solution": "$\\boxed{4.5e33}$", "idx": 3}, ("p", "4.5e33", "3")),
    ("minerva", {"question": "p", "answer": "2"}, ("p", "2", "0")),
    ("deepscaler", {"problem": "p", "answer": "\\boxed{3}", "solution": "s"}, ("p", "3", "0")),
    ("dapo", {"data_source": "math_dapo", "prompt": [{"content": DAPO, "role": "user"}], "ability": "MATH",
              "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"}, "extra_info": {"index": "u-1"}},
     ("What is 1+1?", "2", "u-1")),
    ("hotpotqa", {"_id": "5a", "question": "q", "answer": "yes", "type": "bridge", "level": "hard", "context": []},
     ("q", "yes", "5a")),
    ("asearcher", {"id": 3, "question": "q", "answer": ["A", "B"], "aug_answer": ["a"]}, ("q", "A", "3")),
]  # fmt: skip


@pytest.mark.parametrize(("format", "row", "expected"), MATHS)
def test_maths_and_questions(tmp_path: Path, format: str, row: dict[str, Any], expected: tuple[str, str, str]) -> None:
    [problem] = read(tmp_path, format, row)
    assert (problem.prompt, problem.answer, problem.id) == expected
    if format == "asearcher":
        assert json.loads(problem.meta["answers"]) == ["A", "B", "a"]


PACKED = base64.b64encode(
    zlib.compress(pickle.dumps(json.dumps([{"input": "2", "output": "4", "testtype": "stdin"}])))
).decode()
STDIN = Programs((ProgramCase("1", "2"), ProgramCase("2", "4")))
CODE: list[tuple[str, dict[str, Any], Any]] = [
    ("livecodebench", {"question_content": "p", "question_id": "abc", "starter_code": "", "metadata": "{}",
                       "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]),
                       "private_test_cases": PACKED, "difficulty": "easy"}, STDIN),
    ("livecodebench", {"question_content": "p", "question_id": "x", "starter_code": "class Solution:\n  def f(self): pass",
                       "metadata": json.dumps({"func_name": "f"}),
                       "public_test_cases": json.dumps([{"input": "[1, 2]\n\"a\"", "output": "[3]", "testtype": "functional"}])},
     Calls("f", (CallCase(([1, 2], "a"), [3]),))),
    ("codeforces", {"id": "1/A", "description": "d", "input_format": "i", "output_format": "o", "note": None,
                    "examples": [{"input": "1", "output": "2"}], "official_tests": [{"input": "2", "output": "4"}],
                    "rating": 800}, STDIN),
    ("deepcoder", {"problem": "p", "solutions": ["s"], "tests": json.dumps(
        [{"type": "stdin_stdout", "input": "1", "output": "2"}, {"type": "stdin_stdout", "input": "2", "output": "4"}])}, STDIN),
    ("deepcoder", {"problem": "p", "solutions": ["s"], "tests": json.dumps({"inputs": ["1", ["2"]], "outputs": ["2", "4"]})}, STDIN),
    ("deepcoder", {"problem": "p", "solutions": [], "tests": json.dumps(
        [{"type": "function_call", "fn_name": "g", "input": [1, 2], "output": [3]}])}, Calls("g", (CallCase((1, 2), 3),))),
    ("mbpp", {"task_id": 2, "text": "Write f.", "code": "def f(x): return x", "test_list": ["assert f(1) == 1"],
              "test_setup_code": "import math", "challenge_test_list": []},
     Checks("import math\ndef check():\n    assert f(1) == 1\n", ("check",))),
]  # fmt: skip


@pytest.mark.parametrize(("format", "row", "suite"), CODE)
def test_programs(tmp_path: Path, format: str, row: dict[str, Any], suite: Any) -> None:
    [problem] = read(tmp_path, format, row)
    assert from_json(problem.meta["tests"]) == suite and problem.prompt


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return (Path.write_text, (tmp_path / "ran", "x"))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Hostile()))).decode()
    row = {"question_content": "p", "question_id": "x", "public_test_cases": "[]", "private_test_cases": packed}
    with pytest.raises(ConfigError):
        read(tmp_path, "livecodebench", row)
    assert not (tmp_path / "ran").exists()


def test_what_has_no_tests_is_left_out(tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "description": "d", "official_tests": [{"input": "", "output": ""}] if i else []}
        for i in range(3)
    ]
    assert [problem.id for problem in read(tmp_path, "codeforces", *rows)] == ["1", "2"]
    assert [problem.id for problem in read(tmp_path, "codeforces", *rows, limit=1)] == ["1"]


def test_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"question": "q", "answer": "#### 2"}\n'))
    assert load_problems(Problems(source=str(path), options={"format": "gsm8k"}), 0)[0].answer == "2"


@pytest.mark.parametrize(
    ("format", "row", "says"),
    [
        ("gsm8k", {"question": "q", "answer": "2"}, "#### number"), ("gsm8k", {"answer": "#### 2"}, "'question' is missing"),
        ("math", {"problem": "p", "solution": "none"}, "neither an answer nor a box"), ("aime", [], "object is expected"),
        ("aime", {"answer": "1"}, "problem or Problem or question"), ("amc", {"problem": "p", "answer": True}, "text or number"),
        ("hotpotqa", {"question": "", "answer": "a"}, "question"), ("asearcher", {"question": "q", "answer": []}, "no answer"),
        ("gsm9k", {}, "Did you mean 'gsm8k'?"),
    ],
)  # fmt: skip
def test_what_is_not_as_published(tmp_path: Path, format: str, row: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, format, row)
    assert says in str(caught.value)
    assert format not in FORMATS or caught.value.where.endswith("data.jsonl:1")


def test_reasoning_gym_levels_and_scores() -> None:
    pytest.importorskip("reasoning_gym")
    section = Problems(source="reasoning-gym", options={"dataset": "chain_sum", "count": 7, "levels": [0, 2]})
    found = load_problems(section, 3)
    assert [problem.meta["level"] for problem in found] == ["0"] * 4 + ["2"] * 3
    assert load_problems(section, 3) == found != load_problems(section, 4)
    reward: Any = load_reward(Component(name="reasoning-gym"))
    tagged: Any = load_reward(Component(name="reasoning-gym", options={"tag": "answer"}))
    for problem in found:
        assert reward(problem, problem.answer) == 1.0 > reward(problem, "x")
        assert (
            tagged(problem, f"so <answer>{problem.answer}</answer>") == 1.0 and tagged(problem, problem.answer) == 0.0
        )
    for options, says in (
        ({"dataset": "chain_sums"}, "no data set"),
        ({"dataset": "chain_sum", "parameters": {"x": 1}}, "refuses"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_problems(Problems(source="reasoning-gym", options=options), 0)
        assert says in str(caught.value)


def test_champ_is_checked_by_maths() -> None:
    pytest.importorskip("champ_dataset")
    found = load_problems(Problems(source="champ"), 0)
    assert len(found) > 200 and all(problem.prompt and problem.answer for problem in found)


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        packages.need("no_such_package.inside", "gym")
    assert "astraflow-prefect[gym]" in caught.value.remedy and caught.value.kind == "missing_package"

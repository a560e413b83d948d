"""The data set: what is read, what is refused and how, and that it is frozen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.config import Problems
from astraflow.problems import Problem, addition, data_hash, load_problems, problems_from_table, problems_table
from storage.errors import ConfigError, DataError


def write(folder: Path, *lines: object) -> Problems:
    path = folder / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return Problems(source=str(path))


def test_addition_is_the_demo_problem() -> None:
    problems = addition(0, count=500)
    assert len({problem.prompt for problem in problems}) == 500
    for index, problem in enumerate(problems):
        a, b = problem.prompt.removesuffix("=").split("+")
        assert problem.index == index and len(a) == len(b) == 2
        assert problem.answer == f"{int(a) + int(b):03d}"[::-1]
    assert addition(0, count=500) == problems != addition(1, count=500)
    everything = {p.prompt: p.answer for p in addition(0, digits=1, count=100)}
    assert everything["9+9="] == "81" and everything["1+2="] == "30" and len(everything) == 100
    assert {p.prompt: p.answer for p in addition(3, count=10_000)}["12+34="] == "640"


@pytest.mark.parametrize(
    "options", [{"digits": 0}, {"digits": "2"}, {"count": 0}, {"digits": 1, "count": 101}, {"x": 1}]
)
def test_addition_refuses_what_it_cannot_do(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_problems(Problems(source="addition", options=options), 0)
    assert caught.value.where == "problems.options"


def test_a_file_is_read(tmp_path: Path) -> None:
    section = write(
        tmp_path,
        {"prompt": "p", "answer": "a", "id": "x", "level": 3, "tags": ["t"], "note": "n"},
        "",
        {"question": "q", "answer": 42},
        {"problem": "r", "answer": 0.5, "id": 7},
    )
    assert load_problems(section, 0) == [
        Problem(0, "x", "p", "a", {"level": "3", "tags": '["t"]', "note": "n"}),
        Problem(1, "1", "q", "42", {}),
        Problem(2, "7", "r", "0.5", {}),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON object is expected, not list"),
        ({"answer": "a"}, "no prompt"),
        ({"prompt": 3, "answer": "a"}, "prompt must be a non-empty text"),
        ({"question": "", "answer": "a"}, "question must be a non-empty text"),
        ({"prompt": "p"}, "no answer"),
        ({"prompt": "p", "answer": None}, "answer must be a text or a number"),
        ({"prompt": "p", "answer": True}, "answer must be a text or a number"),
        ({"prompt": "p", "answer": "a", "id": 1.5}, "id must be a text or a whole number"),
        ({"prompt": "p", "answer": "a", "id": "first"}, "the id 'first' is also on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, says: str) -> None:
    section = write(tmp_path, {"prompt": "p", "answer": "a", "id": "first"}, line)
    with pytest.raises(ConfigError) as caught:
        load_problems(section, 0)
    assert caught.value.where == f"{tmp_path / 'data.jsonl'}:2"
    assert says in caught.value.what
    assert caught.value.remedy


def test_the_line_ends_of_unicode_are_text(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85c", "answer": "1"}\r\n{"prompt": "d", "answer": "2"}\n', encoding="utf-8")
    assert [problem.prompt for problem in load_problems(Problems(source=str(path)), 0)] == ["a\u2028b\x85c", "d"]


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "\\ud800", "answer": "1"}\n')
    with pytest.raises(ConfigError, match="surrogate") as caught:
        load_problems(Problems(source=str(path)), 0)
    assert caught.value.where == f"{path}:2"


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    for section, says in (
        (Problems(source=str(tmp_path / "missing.jsonl")), "cannot be read"),
        (Problems(source=str(tmp_path / "latin.jsonl")), "cannot be read"),
        (Problems(source="multiplication"), "neither a .jsonl file nor a built-in generator"),
        (write(tmp_path, "", " "), "empty"),
        (Problems(source=str(tmp_path / "data.jsonl"), options={"count": 3}), "a file takes no options"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_problems(section, 0)
        assert says in caught.value.what


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(rows=st.lists(st.tuples(texts, texts, texts, st.dictionaries(texts, texts, max_size=3)), max_size=5))
def test_the_table_holds_everything_and_the_hash_sees_every_change(rows: list[Any]) -> None:
    problems = [Problem(i, id_, prompt, answer, meta) for i, (id_, prompt, answer, meta) in enumerate(rows)]
    assert problems_from_table(problems_table(problems)) == problems
    again = problems_from_table(problems_table(problems))
    assert data_hash(again) == data_hash(problems)
    if problems:
        other = [Problem(0, problems[0].id, problems[0].prompt + "!", problems[0].answer), *problems[1:]]
        assert data_hash(other) != data_hash(problems) != data_hash(problems[:-1])


def test_the_hash_is_the_same_everywhere() -> None:
    assert data_hash(addition(0, count=3)) == "e93ccb15b41c47fb5a6ad82e8e386acf"


def test_another_table_is_refused() -> None:
    with pytest.raises(DataError):
        problems_from_table(pa.table({"prompt": ["p"]}))

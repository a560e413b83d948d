"""SQL sees the run's tables and nothing else, and only those that it names are built."""

from __future__ import annotations

import pyarrow as pa
import pytest

from astraflow.query import Run
from astraflow.query.sql import run_sql
from storage.errors import ConfigError


def test_a_join_of_trajectories_with_what_became_of_them(run: Run) -> None:
    result = run.sql("""
        select t.policy, p.state, count(*) as n, avg(t.reward) as reward
        from trajectories t join parts p on t.policy = p.policy and t.group_id = p.group_id
        group by all order by all
    """)
    assert [tuple(row.values()) for row in result.to_pylist()] == [
        ("solver", "consumed", 6, 2.5 / 6),
        ("solver", "dropped", 4, 0.5625),
        ("verifier", "batched", 5, 0.6),
        ("verifier", "ready", 4, 0.5),
    ]


def test_every_table_can_be_asked(run: Run) -> None:
    counts = {
        name: run.sql(f"select count(*) as n from {name}")["n"][0].as_py()
        for name in ("trajectories", "parts", "batches", "steps", "versions", "decisions", "pools")
    }
    expected = {"trajectories": 19, "parts": 13, "batches": 3, "steps": 2, "versions": 5, "decisions": 19, "pools": 2}
    assert counts == expected


def test_columns_and_tables_can_be_listed(run: Run) -> None:
    assert run.sql("describe pools")["column_name"].to_pylist()[:3] == ["participant", "pool", "region"]
    assert "trajectories" in run.sql("show tables")["name"].to_pylist()


def test_only_the_tables_that_a_query_names_are_built() -> None:
    def unasked() -> object:
        raise AssertionError("this table was not asked for")

    assert run_sql("select 1 as one", {"parts": unasked}, {}).to_pylist() == [{"one": 1}]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec 1", "syntax error"),
        ("select nothing from parts", 'Referenced column "nothing" not found'),
        ("select * from nope", "nope does not exist"),
        ("select 1; select 2", "a query is one SELECT"),
        ("create table t as select 1", "a query is one SELECT"),
        ("copy parts to 'x.csv'", "a query is one SELECT"),
        ("select * from read_text('/etc/hostname')", "Permission Error"),
        ("", "a query is one SELECT"),
    ],
)
def test_a_wrong_query_says_what_is_wrong_and_what_there_is(run: Run, query: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run.sql(query)
    assert message in caught.value.what
    assert "parts(policy, group_id, " in caught.value.remedy
    assert caught.value.kind == "sql"


def test_python_variables_are_out_of_reach(run: Run) -> None:
    secret = run.table("parts")
    assert secret.num_rows
    with pytest.raises(ConfigError, match="secret does not exist"):
        run.sql("select * from secret")


def test_sums_of_integers_are_integers() -> None:
    table = pa.table({"a": [1, 2]})
    result = run_sql(
        "select sum(a) as small, sum(a) * 10000000000000000000::hugeint as large from t", {"t": lambda: table}, {}
    )
    assert result.schema.field("small").type == pa.int64()
    assert result.to_pylist() == [{"small": 3, "large": 3 * 10**19}]

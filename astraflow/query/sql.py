"""SQL over a run, by DuckDB in this process.

A query sees the run's tables and nothing else: no files, no network, no Python variables. Only the tables that it
names are built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from storage.errors import ConfigError

Source = Callable[[], "pa.Table | ds.Dataset"]

_READING = {"SELECT", "EXPLAIN", "MULTI"}  # MULTI is how DuckDB parses PIVOT


def run_sql(query: str, sources: Mapping[str, Source], columns: Mapping[str, list[str]]) -> pa.Table:
    """The result of one reading statement. ``columns`` are listed when it is wrong.

    Raises ``ConfigError`` (kind ``sql``) with DuckDB's message.
    """
    with duckdb.connect(":memory:", config={"python_enable_replacements": False}) as connection:
        try:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type.name not in _READING:
                raise _wrong("a query is one SELECT, DESCRIBE, SUMMARIZE, PIVOT or EXPLAIN statement", columns)
            for name in _named(query, sources):
                connection.register(name, sources[name]())
            connection.execute("SET enable_external_access = false; SET lock_configuration = true")
            relation = connection.sql(query)
            return _with_plain_integers(relation.to_arrow_table())
        except duckdb.Error as error:
            raise _wrong(str(error).strip(), columns) from error


def _with_plain_integers(table: pa.Table) -> pa.Table:
    """DuckDB sums integers to 128 bits, which Arrow has as decimals: columns whose values fit become int64 again."""
    for at, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.precision == 38 and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):  # too large for 64 bits
                table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
    return table


def _named(query: str, sources: Mapping[str, Source]) -> list[str]:
    """The tables whose name stands in the query; all but the trajectories if it asks what tables there are."""
    words = {word.lower() for word in re.findall(r"\w+", query)}
    if words == {"show", "tables"}:
        return list(sources)
    return [name for name in sources if name in words]


def _wrong(what: str, columns: Mapping[str, list[str]]) -> ConfigError:
    tables = "\n".join(f"  {name}({', '.join(names)})" for name, names in columns.items())
    return ConfigError(what, where="query", remedy=f"The tables are:\n{tables}", kind="sql")

"""``open_run``: one run's config, tables, trajectories, figures, and SQL over them, from its URL alone."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset as ds

from astraflow.query import reports, tables
from astraflow.query.curves import PolicyCurves, run_curves
from astraflow.query.figures import RunFigures, run_figures
from astraflow.query.fold import RunFold
from astraflow.query.logs import RunLogReader
from astraflow.query.sql import run_sql
from astraflow.query.trajectories import TRAJECTORIES, trajectories_dataset
from astraflow.recipe import load_run_config
from storage import ObjectStore, open_store
from storage.errors import ConfigError
from storage.keys import NAME, RunKeys

TABLES = ("trajectories", *tables.SCHEMAS)
"""Names that ``sql`` knows; ``table`` knows all but the first."""


def open_run(url: str) -> Run:
    """Open the run at ``url``: a store's URL, a slash, the run's name. Raises ``ConfigError`` if it is not there."""
    store_url, _, run = url.rstrip("/").rpartition("/")
    if not store_url or store_url.endswith(":/") or not NAME.match(run):
        raise ConfigError(
            "not the URL of a run",
            where=repr(url),
            remedy="Use a store's URL and a run's name: path/to/store/RUN, s3://bucket/prefix/RUN",
            kind="run_url",
        )
    return Run(open_store(store_url), run)


class Run:
    """A run as it was when it was opened or last refreshed. Logs are read at first use, each record once."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self.store = store
        self.keys = RunKeys(run)
        self.config = load_run_config(store, run)
        self._reader = RunLogReader(store, self.keys)
        self._fold = RunFold(self.config.policies)
        self._fresh = False

    def __repr__(self) -> str:
        return f"Run({self.store.url}/{self.keys.run})"

    @property
    def fold(self) -> RunFold:
        """The run's state as records tell it."""
        if not self._fresh:
            self.refresh()
        return self._fold

    def refresh(self) -> Run:
        """Read what was decided since; returns the run itself."""
        for seen in self._reader.advance():
            self._fold.take(seen)
        self._fresh = True
        return self

    def trajectories(self) -> ds.Dataset:
        """Committed rows of admitted groups, with ``policy``, ``version`` and ``path``; see ``query.trajectories``."""
        return trajectories_dataset(self.store, self.keys, self.fold)

    def table(self, name: str) -> pa.Table:
        """One of the tables of ``TABLES`` but the first. Raises ``ConfigError`` for another name."""
        build = self._builders().get(name)
        if build is None:
            raise ConfigError(
                f"there is no table {name!r}", remedy=f"There are: {', '.join(tables.SCHEMAS)}", kind="sql"
            )
        return build()

    def sql(self, query: str) -> pa.Table:
        """One reading SQL statement over ``trajectories`` and the tables. Raises ``ConfigError`` with what is wrong."""
        columns = {"trajectories": TRAJECTORIES.names}
        columns |= {name: schema.names for name, schema in tables.SCHEMAS.items()}
        return run_sql(query, {"trajectories": self.trajectories, **self._builders()}, columns)

    def figures(self) -> RunFigures:
        """What the run comes to, counted from the store."""
        return run_figures(self.store, self.keys, self.fold, self.config)

    def curves(self) -> dict[str, PolicyCurves]:
        """The trained policies' values step by step, counted from the same rows as the figures."""
        return run_curves(self.fold, self.config.trained)

    def _builders(self) -> dict[str, Callable[[], pa.Table]]:
        fold, build = self.fold, tables.build
        return {
            "parts": lambda: build("parts", tables.part_rows(fold)),
            "batches": lambda: build("batches", tables.batch_rows(fold)),
            "steps": lambda: tables.steps_table(self.store, self.keys, fold, self.config.policies),
            "versions": lambda: build("versions", tables.version_rows(self.store, self.keys, fold)),
            "decisions": lambda: build("decisions", tables.decision_rows(fold)),
            "pools": lambda: build("pools", tables.pool_rows(fold)),
            "loads": lambda: build("loads", reports.load_rows(fold)),
            "load_pools": lambda: build("load_pools", reports.load_pool_rows(fold)),
            "evaluations": lambda: build("evaluations", reports.evaluation_rows(fold)),
            "stages": lambda: build("stages", reports.stage_rows(fold, self.config)),
        }

"""Reading a run: its logs as tables, its trajectories as a data set, its figures, and SQL over all of them.

Everything here only reads the object store; it works on a live run, on a finished one, and with no other process.
"""

from __future__ import annotations

from astraflow.query.figures import PolicyFigures, RunFigures
from astraflow.query.listing import RunEntry, newest_run, runs
from astraflow.query.run import Run, open_run

__all__ = ["PolicyFigures", "Run", "RunEntry", "RunFigures", "newest_run", "open_run", "runs"]

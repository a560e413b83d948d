"""RL post-training for agentic LLMs: rollouts, data and training share nothing but an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["__version__", "open_run"]

if TYPE_CHECKING:
    from astraflow.query.run import Run


def open_run(url: str) -> Run:
    """Open a run for reading: ``open_run("s3://bucket/prefix/RUN")``; see ``astraflow.query.run.Run``."""
    from astraflow.query.run import open_run as opened  # noqa: PLC0415 - importing astraflow must stay cheap

    return opened(url)

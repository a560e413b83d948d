"""Ctrl-C: a command ends at once and says what it left behind.

Each stretch of a command that leaves something when it is interrupted says so with ``leaving``; the innermost
note is printed. Exit code 130 is the command line's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


class _Farewell:
    """Whether this process has said its farewell: an inner note makes outer ones silent."""

    is_said = False


@contextmanager
def leaving(note: str) -> Iterator[None]:
    """If the block is interrupted, say ``note``, once, and let the interruption through."""
    try:
        yield
    except KeyboardInterrupt:
        farewell(note)
        raise


def farewell(note: str = "") -> None:
    """Say that the command was interrupted and what it left; the first call of a process counts."""
    if not _Farewell.is_said:
        _Farewell.is_said = True
        print(f"\nInterrupted. {note}".rstrip(), file=sys.stderr)  # noqa: T201

"""Ctrl-C: a command ends at once and says what it left behind.

Each stretch of a command that leaves something when it is interrupted says so with ``leaving``; the innermost
note is printed. Exit code 130 is the command line's.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


class _Interruption:
    """Whether this process has been interrupted, and has said its farewell: an inner note makes outer ones silent."""

    is_heard = False
    is_said = False


def listen() -> None:
    """From here on SIGINT raises KeyboardInterrupt and is remembered."""
    signal.signal(signal.SIGINT, _hear)


def was_heard() -> bool:
    """Whether SIGINT came, even if a library has made another error of the KeyboardInterrupt."""
    return _Interruption.is_heard


def _hear(signum: int, frame: FrameType | None) -> None:
    _Interruption.is_heard = True
    signal.default_int_handler(signum, frame)


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
    if not _Interruption.is_said:
        _Interruption.is_said = True
        print(f"\nInterrupted. {note}".rstrip(), file=sys.stderr)  # noqa: T201

"""What goes into a sandbox and what comes out of it: limits, cases, reports.

A report says how a case ended, never whether it was right: the expected answer stays outside and is compared there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Ended = Literal["ended", "error", "timeout", "memory", "output", "crashed", "killed", "no_result"]
"""``ended`` by itself; ``error``: an exception or a non-zero exit; ``timeout`` of processor or wall time; ``memory``:
the limit of memory; ``output``: more than the limit; ``crashed``: a fault such as a segmentation fault; ``killed`` by
another signal; ``no_result``: the process ended without saying what its function returned."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one case may use. ``memory_mb`` is address space; files exist only under bubblewrap."""

    cpu_s: int = 6
    wall_s: float = 12.0
    memory_mb: int = 1024
    output_bytes: int = 1 << 20
    file_mb: int = 16


DEFAULT = Limits()


@dataclass(frozen=True, slots=True)
class Program:
    """Run the submission as a program that reads ``stdin``."""

    stdin: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function of the submission, or a method of its class ``Solution``. Arguments are plain data."""

    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Case = Program | Call


@dataclass(frozen=True, slots=True)
class Report:
    """How a case ended. ``value`` is what a called function returned, as plain data, if ``ended == "ended"``."""

    ended: Ended
    stdout: str = ""
    stderr: str = ""
    value: Any = None
    error: str = ""  # the exception's type
    message: str = ""
    code: int = 0  # exit code, or minus the signal
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0

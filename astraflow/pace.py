"""How often a store is asked: every 10 ms when it is a local disk, with backoff when requests cost money."""

from __future__ import annotations

import time
from collections.abc import Callable

from storage import is_near
from storage.errors import DeadlineError


class Pace:
    """Waiting times of one polling loop.

    Local and memory stores are polled at 10 ms. Others start at 50 ms and back off by 1.5 up to 2 s;
    ``reset`` (own append, or something came) starts again.
    """

    def __init__(self, store_url: str) -> None:
        self._local = is_near(store_url)
        self._wait_s = 0.01 if self._local else 0.05

    def reset(self) -> None:
        """Something happened: ask soon again."""
        self._wait_s = 0.01 if self._local else 0.05

    def next_s(self) -> float:
        """Seconds until the next question."""
        wait_s = self._wait_s
        if not self._local:
            self._wait_s = min(2.0, self._wait_s * 1.5)
        return wait_s


def wait_until(
    done: Callable[[], bool],
    *,
    pace: Pace,
    timeout_s: float,
    what: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Poll ``done`` at ``pace``. Raises ``DeadlineError`` naming ``what`` after ``timeout_s``."""
    deadline = clock() + timeout_s
    while not done():
        if clock() >= deadline:
            raise DeadlineError(f"waited {timeout_s:g} s for {what}", kind="timeout")
        sleep(pace.next_s())

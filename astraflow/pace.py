"""How often a store is asked: soon where asking is cheap, with backoff where requests cost money."""

from __future__ import annotations

import time
from collections.abc import Callable

from storage import is_near
from storage.errors import DeadlineError

_NEAR = (0.01, 0.1, 0.02)
"""The first and the longest wait in seconds, and the share of the silence that a wait takes between them."""
_FAR = (0.05, 1.0, 0.2)
"""As above: 27 requests in the first ten seconds of a silence, one a second after that (about $1 a month)."""


class Pace:
    """Waiting times of one polling loop; ``reset`` (own append, or something came) starts again.

    Local and memory stores are polled at 10 ms; after half a second of silence at 2 % of it, at most 0.1 s: who waits
    for long loses next to nothing, and leaves the processor to those who compute beside it. Other stores are polled at
    50 ms, after a quarter of a second at 20 % of the silence, at most 1 s: what comes is half of that late on average.
    """

    def __init__(self, store_url: str) -> None:
        self._first_s, self._most_s, self._share = _NEAR if is_near(store_url) else _FAR
        self.reset()

    def reset(self) -> None:
        """Something happened: ask soon again."""
        self._wait_s = self._first_s
        self._waited_s = 0.0

    def next_s(self) -> float:
        """Seconds until the next question."""
        wait_s = self._wait_s
        self._waited_s += wait_s
        self._wait_s = min(self._most_s, max(self._first_s, self._share * self._waited_s))
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

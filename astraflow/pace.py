"""How often a store is asked: soon where asking is cheap, with backoff where requests cost money."""

from __future__ import annotations

import time
from collections.abc import Callable

from storage import is_near
from storage.errors import DeadlineError

_NEAR_S, _NEAR_MOST_S, _NEAR_SHARE = 0.01, 0.1, 0.02
_FAR_S, _FAR_MOST_S, _FAR_GROWTH = 0.05, 2.0, 1.5


class Pace:
    """Waiting times of one polling loop; ``reset`` (own append, or something came) starts again.

    Local and memory stores are polled at 10 ms; after half a second of silence at 2 % of it, at most 0.1 s: who waits
    for long loses next to nothing, and leaves the processor to those who compute beside it. Other stores start at
    50 ms and back off by 1.5 up to 2 s.
    """

    def __init__(self, store_url: str) -> None:
        self._is_near = is_near(store_url)
        self.reset()

    def reset(self) -> None:
        """Something happened: ask soon again."""
        self._wait_s = _NEAR_S if self._is_near else _FAR_S
        self._waited_s = 0.0

    def next_s(self) -> float:
        """Seconds until the next question."""
        wait_s = self._wait_s
        self._waited_s += wait_s
        if self._is_near:
            self._wait_s = min(_NEAR_MOST_S, max(_NEAR_S, _NEAR_SHARE * self._waited_s))
        else:
            self._wait_s = min(_FAR_MOST_S, wait_s * _FAR_GROWTH)
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

"""Asking the store from asyncio: in a thread, again while it is unreachable, and noting when it last answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from storage.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


class Contact:
    """A pool's line to the store. Passing faults are waited out; what the caller may do meanwhile is its own rule."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.faults = 0
        self._clock = clock
        self._answered = clock()

    @property
    def silent_s(self) -> float:
        """Seconds since the store last answered."""
        return self._clock() - self._answered

    async def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``call`` in a thread until it answers. Raises every error but ``StoreError`` of kind ``unreachable``."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                answer = await asyncio.to_thread(call, *args, **kwargs)
            except StoreError as error:
                if error.kind != "unreachable":
                    raise
                self.faults += 1
                await asyncio.sleep(wait_s)
                wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
            else:
                self._answered = self._clock()
                return answer

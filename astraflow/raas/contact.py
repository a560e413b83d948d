"""Asking the store from asyncio: in a thread, again while it is unreachable, and noting when it last answered.

The threads are its own: a workflow that fills the default ones of asyncio with slow calls cannot keep the pool from
its log.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from storage.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_THREADS = 16  # two a policy (weights, upload) and two for the logs; they start as they are needed


class Contact:
    """A pool's line to the store. Passing faults are waited out; what the caller may do meanwhile is its own rule."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.faults = 0
        self._clock = clock
        self._answered = clock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store")

    @property
    def silent_s(self) -> float:
        """Seconds since the store last answered."""
        return self._clock() - self._answered

    async def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``call`` in a thread until it answers. Raises every error but ``StoreError`` of kind ``unreachable``."""
        loop, work = asyncio.get_running_loop(), functools.partial(call, *args, **kwargs)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                answer = await loop.run_in_executor(self._threads, work)
            except StoreError as error:
                if error.kind != "unreachable":
                    raise
                self.faults += 1
                await asyncio.sleep(wait_s)
                wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
            else:
                self._answered = self._clock()
                return answer

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``call`` in one of the threads, once: work for the store that does not ask it."""
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Start nothing more; calls that are under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

"""Waiting on processes that may die or hang: no wait outlives them, and all waiters get one error that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from storage.errors import EngineError

WATCH_S = 0.25
CALL_S = 300.0
"""No answer for so long: the processes hang."""

T = TypeVar("T")


class Lifeline:
    """The life of an engine's processes, called ``name``. Invariant: once ended it stays so, with its first error."""

    def __init__(self, name: str, *, is_dead: Callable[[], bool], last_lines: Callable[[], str]) -> None:
        self._name = name
        self._is_dead = is_dead
        self._last_lines = last_lines
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended.add_done_callback(lambda ended: ended.exception())  # known, whether or not anybody waits
        self._watching = asyncio.create_task(self._watch())

    def check(self) -> None:
        """Raise the error that ended it, if it has ended."""
        if self._ended.done():
            self._ended.result()

    def end(self, error: EngineError) -> None:
        """From here on everybody gets ``error``, unless it has ended before."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def close(self) -> None:
        """It is ended on purpose."""
        self.end(EngineError("the engine is closed", kind="closed"))
        self._watching.cancel()

    def died(self) -> EngineError:
        """The processes are dead, whoever was first to see it; returns the error that all get."""
        lines = self._last_lines()
        self.end(
            EngineError(
                f"{self._name} died; its log ends with:\n{lines}" if lines else f"{self._name} died and logged nothing",
                remedy="The pool ends; start it again, with a smaller max_batch if memory was short",
                kind="died",
            )
        )
        error = self._ended.exception()
        assert isinstance(error, EngineError)
        return error

    async def until(self, work: Awaitable[T], timeout_s: float | None = None) -> T:
        """The result of ``work``. Raises the error of its end, or ``EngineError`` if there is none in time."""
        self.check()
        task = asyncio.ensure_future(work)
        try:
            async with asyncio.timeout(timeout_s):
                both: set[asyncio.Future[Any]] = {task, self._ended}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return task.result()
        except TimeoutError as error:
            if task.done():
                raise
            raise EngineError(
                f"{self._name} gave no answer for {timeout_s:g} s; its log ends with:\n{self._last_lines()}",
                remedy="The pool ends; start it again",
                kind="stuck",
            ) from error
        finally:
            task.cancel()

    async def _watch(self) -> None:
        """Look often: not every call to dead processes would ever return."""
        while not self._is_dead():
            await asyncio.sleep(WATCH_S)
        self.died()

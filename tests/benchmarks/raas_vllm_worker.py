"""What vLLM's worker does while its weights change, told by its own clock; mixed into it by ``raas_vllm.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from astraflow.raas.vllm_worker import SparseUpdates


class WatchedUpdates(SparseUpdates):
    """Also notes when steps end and begin: a pause is from the last one before an update to the first one after."""

    def astraflow_watch(self) -> None:
        """Look at every step from here on."""
        self._watched_ended = 0.0
        self._watched_swap_s: float | None = None
        self._watched_gaps: list[float] = []
        self._watched_pauses: list[tuple[float, float]] = []
        runner: Any = self.model_runner
        runner.execute_model = self._watched_begin(runner.execute_model)
        runner.sample_tokens = self._watched_end(runner.sample_tokens)

    def astraflow_swap(self) -> float:
        """As it is, noted."""
        self._watched_swap_s = super().astraflow_swap()
        return self._watched_swap_s

    def astraflow_watched(self) -> tuple[list[float], list[tuple[float, float]]]:
        """Seconds between two steps without an update; of each update those between two steps, and of writing."""
        return self._watched_gaps, self._watched_pauses

    def _watched_begin(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*given: Any, **named: Any) -> Any:
            gap = time.perf_counter() - self._watched_ended
            if self._watched_swap_s is not None:
                self._watched_pauses.append((gap, self._watched_swap_s))
                self._watched_swap_s = None
            else:
                self._watched_gaps.append(gap)
            return execute(*given, **named)

        return begin

    def _watched_end(self, sample: Callable[..., Any]) -> Callable[..., Any]:
        def end(*given: Any, **named: Any) -> Any:
            drawn = sample(*given, **named)
            self._watched_ended = time.perf_counter()
            return drawn

        return end

"""A decoding engine as a queue: all sequences of its batch advance together, the more of them the slower.

Every sequence in the batch gets one token a step, so a common counter of tokens says when each is done: a sequence
that entered at count c and has length n is done at c + n. Entering and leaving change the speed, never the counts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from astraflow.simulation.scenario import EngineModel
from astraflow.simulation.timeline import Timeline


class Answer:
    """A sequence on its way through an engine; ``done`` is called when its last token is there."""

    __slots__ = ("begun", "cancelled", "done", "started", "tokens")

    def __init__(self, tokens: int, done: Callable[[], None], started: Callable[[], None]) -> None:
        self.tokens = tokens
        self.done = done
        self.started = started
        self.begun = False
        self.cancelled = False


class VirtualEngine:
    """One engine of a pool. ``busy`` integrates sequences in the batch over time, ``tokens`` counts what it gave."""

    def __init__(self, timeline: Timeline, model: EngineModel, speed: float) -> None:
        self._timeline = timeline
        self._model = model
        self._speed = speed
        self._batch: list[tuple[float, int, Answer]] = []  # by the count at which each is done
        self._queue: deque[Answer] = deque()
        self._live = 0
        self._count = 0.0  # tokens that a sequence got that was here all the time
        self._at = 0.0  # when the counts were brought up to date
        self._entered = 0
        self._epoch = 0  # of the planned event: older ones are void
        self.busy = 0.0
        self.tokens = 0

    def submit(self, *answers: Answer) -> None:
        """Begin them, or queue them while all slots are taken."""
        self._advance()
        self._queue.extend(answers)
        self._fill()
        self._plan()

    def cancel(self, answer: Answer) -> None:
        """Nothing more comes of it."""
        if not answer.cancelled:
            self._advance()
            answer.cancelled = True
            self._live -= answer.begun
            self._fill()
            self._plan()

    def _step_s(self) -> float:
        return (self._model.step_s + self._live * self._model.sequence_s) / self._speed

    def _advance(self) -> None:
        now = self._timeline.now
        if self._live:
            self._count += (now - self._at) / self._step_s()
            self.busy += (now - self._at) * self._live
        self._at = now

    def _fill(self) -> None:
        while self._queue and self._live < self._model.slots:
            answer = self._queue.popleft()
            if answer.cancelled:
                continue
            self._entered += 1
            self._live += 1
            answer.begun = True
            heapq.heappush(self._batch, (self._count + answer.tokens, self._entered, answer))
            answer.started()

    def _plan(self) -> None:
        while self._batch and self._batch[0][2].cancelled:
            heapq.heappop(self._batch)
        self._epoch += 1
        if self._batch:
            epoch = self._epoch
            wait_s = max(0.0, self._batch[0][0] - self._count) * self._step_s()
            self._timeline.after(wait_s, lambda: self._finish(epoch))

    def _finish(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._advance()
        done: list[Answer] = []
        first = self._batch[0][0]
        while self._batch and self._batch[0][0] <= max(first, self._count):
            answer = heapq.heappop(self._batch)[2]
            if not answer.cancelled:
                done.append(answer)
        self._count = max(first, self._count)
        self._live -= len(done)
        self._fill()
        self._plan()
        for answer in done:
            answer.cancelled = True  # it is over: cancelling it now does nothing
            self.tokens += answer.tokens
            answer.done()

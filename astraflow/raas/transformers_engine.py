"""The reference engine: one worker thread owns a Hugging Face model and decodes all requests together.

The event loop hands requests over in lists (one hand-over a loop turn, so that a burst becomes one batch)
and gets results back in lists. New weights are copied in between two decode steps:

- ``continue``: running generations go on with their old KV cache; their tokens carry mixed versions.
- ``finish``: nothing new starts until the running generations are done, then the weights change.
- ``abort``: running generations are thrown away and begin again with the new weights, so that every answer
  has one version; one that was restarted ``MAX_RESTARTS`` times goes on instead.

Invariant: the model, its decoder and ``version`` are touched by the worker thread only.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from astraflow.raas.decoder import Decode, Decoder, Row
from astraflow.raas.engine import Generation, GenerationRequest, fit_context
from astraflow.raas.jobs import Job, Load, fail, resolve, tell_progress
from astraflow.raas.load import load_tensors
from storage.errors import DataError, EngineError, EpisodeError

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate

MAX_RESTARTS = 3
UpdateMode = Literal["continue", "finish", "abort"]


class TransformersEngine:
    """Implements ``Engine`` in this process. Create and use it inside one running event loop."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        max_batch: int = 256,
        update: UpdateMode = "continue",
        max_context: int | None = None,
        threads: int = 1,
        decode: Decode | None = None,
    ) -> None:
        self.version = -1
        self._model = model.eval()
        self._max_batch = max_batch
        self._mode: UpdateMode = update
        self._max_context = max_context
        self._decode = decode
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._fresh: list[Job] = []  # handed over at the end of this turn of the event loop
        self._inbox: queue.SimpleQueue[list[Job] | Load | None] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()  # worker only, as are the next three
        self._running: dict[Row, Job] = {}
        self._load: Load | None = None
        self._in_step = False  # the model holds the update before the next one
        self._closing = False
        self._death: EngineError | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerationRequest) -> Generation:
        self._check_alive()
        job = Job(self._fit(request), self._loop.create_future(), time.monotonic())
        if not self._fresh:
            self._loop.call_soon(self._hand_over)
        self._fresh.append(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            job.cancelled = True
            raise

    async def load(self, update: WeightUpdate) -> None:
        self._check_alive()
        load = Load(update, self._loop.create_future())
        self._inbox.put(load)
        await load.future

    async def close(self) -> None:
        self._closing = True
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death

    def _fit(self, request: GenerationRequest) -> GenerationRequest:
        """The request as the model's context and this engine's means allow it."""
        fitted = fit_context(request, self._max_context)
        if request.stop and self._decode is None:
            raise EpisodeError(
                "stop texts need a tokenizer, and this engine was made without one",
                where=f"policy {request.policy}",
                kind="unsupported",
            )
        return fitted

    def _hand_over(self) -> None:
        jobs, self._fresh = self._fresh, []
        self._inbox.put(jobs)

    # --- the worker thread -------------------------------------------------------------------

    def _work(self) -> None:
        """Run until closed; whatever ends the thread is what every waiter gets."""
        try:
            torch.set_num_threads(self._threads)
            with torch.inference_mode():
                self._decode_until_closed()
            self._die(EngineError("the engine is closed", kind="closed"))
        except Exception as error:  # noqa: BLE001 - the thread's boundary: handed to every waiter
            death = EngineError(
                f"the engine's worker died: {type(error).__name__}: {error}",
                remedy="The pool ends; start it again, with a smaller max_batch if memory was short",
                kind="died",
            )
            death.__cause__ = error
            self._die(death)

    def _decode_until_closed(self) -> None:
        decoder = Decoder(self._model)
        while True:
            can_decode = self._running or (self._waiting and self.version >= 0)
            self._take(block=not can_decode and self._load is None)
            if self._closing:
                return
            self._maybe_load(decoder)
            self._admit(decoder)
            if decoder.rows:
                self._forget_cancelled()
                decoder.drop_done()
                if decoder.rows:
                    decoder.step(self.version)
                    self._report(list(self._running))
                    self._deliver_done()

    def _take(self, *, block: bool) -> None:
        """Take everything out of the inbox; wait for something if ``block``. One load is taken at a time."""
        while self._load is None:
            try:
                item = self._inbox.get(block=block)
            except queue.Empty:
                return
            block = False
            if item is None:
                self._closing = True
                return
            if isinstance(item, Load):
                self._load = item
            else:
                self._waiting.extend(item)

    def _maybe_load(self, decoder: Decoder) -> None:
        """Apply waiting weights if the mode allows it now."""
        load = self._load
        if load is None or (self._mode == "finish" and self._running):
            return
        try:
            load_tensors(self._model, load.update, everything=not self._in_step)
        except DataError as error:
            self._in_step = False
            self._tell(fail, [load.future], error)
        else:
            self._in_step = True
            self.version = load.update.version
            if self._mode == "abort":
                self._restart_running(decoder)
            self._tell(resolve, [(load.future, None)])
        self._load = None

    def _restart_running(self, decoder: Decoder) -> None:
        again = {row: job for row, job in self._running.items() if job.restarts < MAX_RESTARTS}
        for row, job in again.items():
            job.restarts += 1
            row.finish_reason = "aborted"
            del self._running[row]
        decoder.drop_done(force=True)
        self._waiting.extendleft(reversed(again.values()))

    def _admit(self, decoder: Decoder) -> None:
        """Let waiting requests join as far as there is room."""
        room = self._max_batch - len(self._running)
        if not self._waiting or room <= 0 or self.version < 0 or (self._load is not None and self._mode == "finish"):
            return
        now = time.monotonic()
        jobs: list[Job] = []
        while self._waiting and len(jobs) < room:
            job = self._waiting.popleft()
            if not job.cancelled:
                job.admitted = now
                jobs.append(job)
        if not jobs:
            return
        decoder.drop_done(force=True)
        newcomers = {Row(job.request, decode=self._decode): job for job in jobs}
        self._running.update(newcomers)  # before anything can go wrong: who is in here is told
        decoder.admit(list(newcomers), self.version)
        prefilled = time.monotonic()
        for job in jobs:
            job.prefilled = prefilled
        self._report(list(newcomers))
        self._deliver_done()

    def _report(self, rows: Sequence[Row]) -> None:
        """Tell who streams the newest token; with ``abort`` none is certain before the answer is whole."""
        if self._mode == "abort":
            return
        told = [(row.request.progress, row.token_ids[-1]) for row in rows if row.request.progress is not None]
        if told:
            self._tell(tell_progress, told)

    def _forget_cancelled(self) -> None:
        for row in [row for row, job in self._running.items() if job.cancelled]:
            row.finish_reason = "aborted"
            del self._running[row]

    def _deliver_done(self) -> None:
        done = [row for row in self._running if row.done]
        if not done:
            return
        now = time.monotonic()
        results = []
        for row in done:
            job = self._running.pop(row)
            times = (job.admitted - job.submitted, job.prefilled - job.admitted, now - job.prefilled)
            results.append(
                (job.future, Generation(row.token_ids, row.logprobs, row.versions, row.finish_reason, *times))
            )
        self._tell(resolve, results)

    def _die(self, death: EngineError) -> None:
        """From here on nobody waits in vain: those who do are told, those who come are refused."""
        self._death = death
        futures: list[asyncio.Future[Any]] = []
        futures.extend(job.future for job in [*self._running.values(), *self._waiting])
        if self._load is not None:
            futures.append(self._load.future)
        self._tell(fail, futures, death)
        self._tell(self._refuse_rest, death)

    def _refuse_rest(self, death: EngineError) -> None:
        """On the loop: fail what was handed over after the worker had looked for the last time."""
        self._hand_over()
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, Load):
                fail([item.future], death)
            elif item:
                fail([job.future for job in item], death)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run ``callback`` on the event loop, in the order of the calls; a closed loop has no waiters."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

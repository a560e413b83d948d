"""The production engine: vLLM's continuous batching in child processes, updated in place between two decode steps.

``load`` has two phases. While generations run, the patch is written and made ready in the workers; then the scheduler
is paused at a step's end, the prepared values are written, and it goes on. Which generations survive is the pool's
``update`` mode, and what becomes of their KV cache its ``kv`` policy:

- ``continue``: they go on and their tokens carry mixed versions. ``keep``: what was computed of them stays, from the
  weights that computed it. ``recompute``: their prompt and tokens are computed again with the new weights.
- ``finish``: nothing new starts until they are done, then the weights change.
- ``abort``: they begin again with the new weights; one that was restarted ``MAX_RESTARTS`` times goes on instead.

The prefix cache never crosses versions: it is emptied, or with ``keep`` salted by the version a request started under,
and what has drawn no token yet starts again under the new one.

Invariant: vLLM's own label of a token's weights is changed only while nothing is scheduled, together with the weights.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from astraflow.raas.engine import Generation, GenerationRequest, fit_context
from astraflow.raas.lifeline import CALL_S, Lifeline
from astraflow.raas.vllm_guard import Guard
from astraflow.raas.vllm_patch import Patch, remove_patch, write_patch
from astraflow.raas.vllm_request import generation, sampling_params
from astraflow.raas.vllm_start import check_vllm, last_lines, start_vllm
from storage.errors import DataError, EpisodeError

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    from astraflow import config as cfg
    from astraflow.weights.update import WeightUpdate

MAX_RESTARTS = 3
DRAIN_S = 3600.0  # the longest wait for running generations to end
_PREPARED_S = 0.01
_TURN_S = 0.001

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """A request in vLLM; ``again`` is set when it was taken out to begin again."""

    request: GenerationRequest
    restarts: int = 0
    again: bool = False


class VllmEngine:
    """Implements ``Engine``. Made by ``start``; use it inside the event loop that it was made in."""

    @classmethod
    async def start(cls, folder: Path, pool: cfg.Pool) -> VllmEngine:
        """Start vLLM with the model in ``folder``. Raises ``ConfigError`` or ``EngineError``; takes half a minute."""
        check_vllm(pool)
        scratch = Path(tempfile.mkdtemp(prefix="astraflow-vllm-"))
        guard = Guard()
        try:
            with guard.marking():
                llm = await asyncio.to_thread(start_vllm, folder, pool, scratch)
        except BaseException:
            await asyncio.to_thread(guard.close)
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        engine = cls(llm, pool, scratch)
        engine._guard = guard
        return engine

    def __init__(self, llm: AsyncLLM, pool: cfg.Pool, scratch: Path) -> None:
        self.version = -1
        self.pauses_s: list[float] = []  # how long nothing was decoded, an update each
        self._llm = llm
        self._mode = pool.update
        self._keeps_kv = pool.kv == "keep"
        self._scratch = scratch
        self._guard: Guard | None = None  # of the processes, if they are ours
        self._max_context = llm.model_config.max_model_len
        self._names = map(str, itertools.count())
        self._jobs: dict[str, _Job] = {}
        self._open = asyncio.Event()  # whether requests may be handed over and answers be given
        self._loading = asyncio.Lock()
        self._in_step = False  # the workers hold the update before the next one
        self._life = Lifeline("vLLM", is_dead=lambda: llm.errored, last_lines=lambda: last_lines(scratch))

    # --- generating ------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        request = fit_context(request, self._max_context)
        begun = time.monotonic()
        job = _Job(request)
        output: RequestOutput | None = None
        while output is None:
            await self._gate()
            started = time.monotonic()
            output = await self._ask(job)
        ended = time.monotonic()
        await self._gate()  # what new weights drew is given once ``load`` has said so
        return generation(output, started - begun, ended - started)

    async def _gate(self) -> None:
        """Wait while weights are swapped."""
        if not self._open.is_set():
            await self._life.until(self._open.wait())

    async def _ask(self, job: _Job) -> RequestOutput | None:
        """Hand the request over and wait for its answer; None if it is to begin again. Raises as ``generate`` does."""
        from vllm.exceptions import GracefulHTTPError, VLLMClientError  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415

        name = next(self._names)
        self._jobs[name] = job
        job.again = False
        try:
            output = await self._life.until(self._play(name, job.request))
        except EngineDeadError as error:
            raise self._life.died() from error
        except (VLLMClientError, GracefulHTTPError) as error:
            raise EpisodeError(f"vLLM refuses the request: {error}", where=_where(job), kind="refused") from error
        except EngineGenerateError as error:
            raise EpisodeError(f"vLLM failed: {error.__cause__}", where=_where(job), kind="engine") from error
        finally:
            del self._jobs[name]
        reason = output.outputs[0].finish_reason
        if reason in ("stop", "length"):
            return output
        if reason == "abort" and job.again:
            return None
        raise EpisodeError(f"vLLM ended the request with {reason!r}", where=_where(job), kind="engine")

    async def _play(self, name: str, request: GenerationRequest) -> RequestOutput:
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415

        prompt = tokens_input(list(request.prompt_ids), cache_salt=self._salt())
        output: RequestOutput | None = None
        told = 0
        async for output in self._llm.generate(prompt, sampling_params(request), name):
            if request.progress is not None and self._mode != "abort":
                ids = output.outputs[0].token_ids
                if len(ids) > told:
                    request.progress(ids[told:])
                told = len(ids)
        assert output is not None, "vLLM ends a request with an output"
        return output

    def _salt(self) -> str | None:
        """Prefixes are found by requests of the same salt only."""
        return str(self.version) if self._keeps_kv else None

    # --- new weights -----------------------------------------------------------------------------

    async def load(self, update: WeightUpdate) -> None:
        async with self._loading:
            self._life.check()
            patch = await asyncio.to_thread(write_patch, update, self._scratch, whole=not self._in_step)
            try:
                await self._prepare(patch)
                await self._swap(update.version)
            except DataError:
                self._in_step = False
                raise
            finally:
                await asyncio.to_thread(remove_patch, patch)
            self._in_step = True
            self._open.set()

    async def _prepare(self, patch: Patch) -> None:
        """Let the workers make the patch ready beside decoding. Raises ``DataError`` if it does not fit the model."""
        await self._call(lambda: self._llm.collective_rpc("astraflow_prepare", args=(str(patch.folder),)))
        while None in (found := await self._call(lambda: self._llm.collective_rpc("astraflow_prepared"))):
            await asyncio.sleep(_PREPARED_S)
        for wrong in filter(None, found):
            raise DataError(
                wrong["what"],
                where=f"{patch.policy} version {patch.version}: {wrong['where']}",
                remedy="The weights belong to another model than the run's config.json",
                kind=wrong["kind"],
            )

    async def _swap(self, version: int) -> None:
        """Change the weights at a step's end. Nothing can go wrong here but the death of the engine."""
        self._open.clear()
        await self._call(self._handed_over)
        core = self._llm.engine_core  # ``pause_generation`` would sleep 20 ms more
        waits = self._mode == "finish"
        await self._call(
            lambda: core.pause_scheduler_async(
                mode="wait" if waits else "keep", clear_cache=waits or not self._keeps_kv
            ),
            DRAIN_S if waits else CALL_S,
        )
        paused = time.monotonic()
        await self._take_out()
        await self._call(lambda: self._change(version))
        self.pauses_s.append(time.monotonic() - paused)
        self.version = version

    async def _change(self, version: int) -> None:
        """Write, label and go on: sent together and done in this order, so that no answer is waited for in between.

        Should the write fail, nobody gets what is drawn after it: the gate stays shut, and the error ends the pool.
        """
        core = self._llm.engine_core
        swapped = core.collective_rpc_async("astraflow_swap")
        await asyncio.gather(swapped, self._label(version), core.resume_scheduler_async())

    async def _label(self, version: int) -> None:
        """From here on vLLM says that ``version`` draws each token."""
        await self._llm.engine_core.set_weight_version_async(str(version))

    async def _handed_over(self) -> None:
        """Wait until each request that passed the gate is known to vLLM, or done: none slips in with the old salt."""
        while self._jobs.keys() - {state.external_req_id for state in self._states()}:
            await asyncio.sleep(_TURN_S)

    async def _take_out(self) -> None:
        """Take out what must begin again: with ``abort`` all, with ``keep`` what has drawn nothing yet."""
        fresh = self._without_tokens() if self._keeps_kv and self._mode != "finish" else set()
        taken = [name for name, job in self._jobs.items() if name in fresh]
        if self._mode == "abort":
            taken = [name for name, job in self._jobs.items() if name in fresh or job.restarts < MAX_RESTARTS]
        for name in taken:
            job = self._jobs[name]
            job.again = True
            job.restarts += name not in fresh
        if taken:
            await self._call(lambda: self._llm.abort(taken))

    def _without_tokens(self) -> set[str]:
        """The requests that have drawn nothing, or so little that it is still on its way here (it is drawn again)."""
        return {state.external_req_id for state in self._states() if state.is_prefilling} & self._jobs.keys()

    def _states(self) -> list[Any]:
        """vLLM's own list of what it is working on."""
        return list(self._llm.output_processor.request_states.values())

    async def digests(self) -> list[dict[str, str]]:
        """What each rank of the engine holds of each tensor, hashed; equal weights have equal digests."""
        found: list[dict[str, str]] = await self._call(lambda: self._llm.collective_rpc("astraflow_digests"))
        return found

    async def close(self) -> None:
        self._life.close()
        if self._llm.output_handler is not None:
            self._llm.output_handler.cancel()  # else it logs the end as a failure
        await asyncio.to_thread(self._llm.shutdown)
        if self._guard is not None:
            await asyncio.to_thread(self._guard.close)
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _call(self, call: Callable[[], Awaitable[T]], timeout_s: float = CALL_S) -> T:
        """Ask the engine's processes. Raises ``EngineError`` if they are dead or don't answer in time."""
        from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415

        try:
            return await self._life.until(call(), timeout_s)
        except EngineDeadError as error:
            raise self._life.died() from error


def _where(job: _Job) -> str:
    return f"policy {job.request.policy}"

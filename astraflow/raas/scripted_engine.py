"""An engine that says what it is told: for tests of workflows and pools, and for trying a workflow without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from astraflow.raas.engine import Generation, GenerationRequest
from storage.errors import EngineError

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate

Script = Callable[[GenerationRequest], Sequence[int]]
Decode = Callable[[Sequence[int]], str]


class ScriptedEngine:
    """Implements ``Engine``: ``script`` gives the token ids, every log-prob is -1.

    ``requests`` keeps what was asked; ``delay_s`` is how long an answer takes; with ``decode`` stop texts are known.
    An exception of the script is the generation's.
    """

    def __init__(self, script: Script, *, delay_s: float = 0.0, decode: Decode | None = None) -> None:
        self.version = -1
        self.requests: list[GenerationRequest] = []
        self.loaded: list[int] = []
        self._script = script
        self._delay_s = delay_s
        self._decode = decode
        self._closed = False

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._closed:
            raise EngineError("the engine is closed", kind="closed")
        self.requests.append(request)
        await asyncio.sleep(self._delay_s)
        ids = list(self._script(request))[: request.max_tokens]
        ends = ids[-1] in request.stop_token_ids
        if request.stop and self._decode is not None:
            ends = ends or any(text in self._decode(ids) for text in request.stop)
        if request.progress is not None:
            request.progress(ids)
        reason = "stop" if ends else "length"
        return Generation(ids, [-1.0] * len(ids), [self.version] * len(ids), reason)

    async def load(self, update: WeightUpdate) -> None:
        self.version = update.version
        self.loaded.append(update.version)

    async def close(self) -> None:
        self._closed = True

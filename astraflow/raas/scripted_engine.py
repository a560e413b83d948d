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


class ScriptedEngine:
    """Implements ``Engine``: ``script`` gives the token ids, every log-prob is -1.

    ``requests`` keeps what was asked; ``delay_s`` is how long an answer takes. An exception of the script is
    the generation's.
    """

    def __init__(self, script: Script, *, delay_s: float = 0.0) -> None:
        self.version = -1
        self.requests: list[GenerationRequest] = []
        self.loaded: list[int] = []
        self._script = script
        self._delay_s = delay_s
        self._closed = False

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._closed:
            raise EngineError("the engine is closed", kind="closed")
        self.requests.append(request)
        await asyncio.sleep(self._delay_s)
        ids = list(self._script(request))[: request.max_tokens]
        reason = "stop" if ids[-1] in request.stop_token_ids else "length"
        return Generation(ids, [-1.0] * len(ids), [self.version] * len(ids), reason)

    async def load(self, update: WeightUpdate) -> None:
        self.version = update.version
        self.loaded.append(update.version)

    async def close(self) -> None:
        self._closed = True

"""An answer as server-sent events, while it is sampled.

What was sent is never taken back: text is held back while a character may be incomplete, while its end may be the
beginning of a stop text, and, with tools, until the whole answer was read for calls.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from astraflow.raas import wire
from astraflow.raas.engine import Progress
from astraflow.workflows.render import Renderer
from astraflow.workflows.sequence import Answer

_INCOMPLETE = "\ufffd"


class TextSoFar:
    """The part of an answer's text that is certain."""

    def __init__(self, renderer: Renderer, stop_ids: frozenset[int], stop: Sequence[str], *, hold: bool) -> None:
        self.sent = ""
        self._renderer = renderer
        self._stop_ids = stop_ids
        self._stop = stop
        self._hold = hold
        self._ids: list[int] = []

    def more(self, ids: Sequence[int]) -> str:
        """What is certain with ``ids`` and was not sent yet."""
        self._ids.extend(id for id in ids if id not in self._stop_ids)
        if self._hold:
            return ""
        text = self._renderer.decode(self._ids, special=False)
        if text.endswith(_INCOMPLETE):
            return ""
        return self._send(text[: len(text) - self._doubtful(text)])

    def rest(self, whole: str) -> str:
        """What is missing of the ``whole`` answer."""
        return self._send(whole)

    def _send(self, text: str) -> str:
        new = text[len(self.sent) :]
        self.sent += new
        return new

    def _doubtful(self, text: str) -> int:
        """How many last characters may begin, or are, a stop text."""
        found = [len(text) - at for stop in self._stop if (at := text.find(stop)) >= 0]
        for stop in self._stop:
            found += [size for size in range(1, len(stop)) if text.endswith(stop[:size])]
        return max(found, default=0)


async def events(
    request: wire.ChatRequest, so_far: TextSoFar, ask: Callable[[Progress], Awaitable[Answer]]
) -> AsyncIterator[bytes]:
    """The events of one answer; ``ask`` samples it and tells the tokens as they come."""
    queue: asyncio.Queue[Sequence[int]] = asyncio.Queue()
    answering = asyncio.ensure_future(ask(queue.put_nowait))
    chunk = _chunks(request.model)
    yield chunk({"role": "assistant", "content": ""})
    try:
        while not answering.done() or not queue.empty():
            getting = asyncio.ensure_future(queue.get())
            await asyncio.wait({getting, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
            elif text := so_far.more(getting.result()):
                yield chunk({"content": text})
        answer = await answering
    finally:
        answering.cancel()
    if text := so_far.rest(answer.content):
        yield chunk({"content": text})
    if answer.tool_calls:
        calls = [{"index": index, **call} for index, call in enumerate(wire.tool_calls(answer))]
        yield chunk({"tool_calls": calls})
    yield chunk({}, wire.finish_reason(answer))
    if (request.stream_options or {}).get("include_usage"):
        yield chunk(None, usage=wire.usage([answer]))
    yield b"data: [DONE]\n\n"


def error_event(message: str, code: str) -> bytes:
    """An error after the stream has begun."""
    return _event(wire.error_body(message, code))


def _chunks(model: str) -> Callable[..., bytes]:
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion.chunk"}
    head |= {"created": int(time.time()), "model": model}  # type: ignore[dict-item]

    def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        return _event({**head, "choices": choices, **more})

    return chunk


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"

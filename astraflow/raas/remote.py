"""A judge that is only an address: a model behind an OpenAI-compatible API that takes text and gives text.

It has no weights, tokenizer or versions here, so what it says is no trajectory: the workflow reads it, and keeps what
is worth keeping in the ``meta`` of others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.raas.http_engine import HttpEngine
from astraflow.trajectory import Sampler, Trajectory
from astraflow.workflows.render import Renderer, assistant
from astraflow.workflows.role import RoleHandle, Voice
from astraflow.workflows.sequence import Answer, Tools
from astraflow.workflows.sequence import Sequence as TokenSequence
from astraflow.workflows.tools import Message, ToolCall, plain
from storage.errors import EpisodeError

NO_WEIGHTS = "0" * 32
"""The digest of the version 0 that is announced for it."""


class TextOnly(Renderer):
    """Stands where a tokenizer would: nothing of a remote judge is rendered here."""

    def __init__(self) -> None:
        self.tokenizer = None
        self.has_template = False


@dataclass(frozen=True, slots=True)
class RemoteVoice(Voice):
    """A voice that answers messages with text. Its engine only carries requests; it has no renderer."""

    def handle(self, name: str, seed: str) -> RoleHandle:
        return RemoteHandle(name, self, seed)


class RemoteHandle(RoleHandle):
    """One role that a remote judge plays."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        seed: int | None = None,
        as_read: bool = False,
        progress: Any = None,
    ) -> Answer:
        """Ask the server. ``as_read`` and ``progress`` change nothing: the text is all that comes."""
        drawn = self._sampler(sampler, temperature)
        asked = [_outgoing(plain(message)) for message in messages]
        body = _body(asked, drawn, self.voice.sampling.max_tokens if max_tokens is None else max_tokens, tools, seed)
        engine = self.voice.engine
        assert isinstance(engine, HttpEngine)
        return _answer(self.name, await self._in_time(engine.post("/v1/chat/completions", body)), messages, drawn)

    async def complete(self, *_: Any, **__: Any) -> Answer:
        raise _text_only(self.name)

    async def generate(self, *_: Any, **__: Any) -> Answer:
        raise _text_only(self.name)

    async def resume(self, *_: Any, **__: Any) -> Answer:
        raise _text_only(self.name)


def _body(
    messages: list[Any], drawn: Sampler, max_tokens: int, tools: Tools | None, seed: int | None
) -> dict[str, Any]:
    """Only what differs from the usual: many servers refuse what they do not know."""
    body: dict[str, Any] = {"messages": messages, "max_tokens": max_tokens, "temperature": drawn.temperature}
    optional = {
        "top_p": drawn.top_p if drawn.top_p < 1 else None,
        "top_k": drawn.top_k or None,
        "min_p": drawn.min_p or None,
        "stop": list(drawn.stop) or None,
        "seed": seed,
        "tools": list(tools) if tools else None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def _outgoing(message: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI has it: arguments of calls are the text of JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", [])
    ]
    return {**message, "tool_calls": calls} if calls else message


def _answer(role: str, said: Any, messages: Sequence[Message], drawn: Sampler) -> Answer:
    try:
        [choice] = said["choices"]
        message = plain(choice["message"])
        reason = "length" if choice["finish_reason"] == "length" else "stop"
    except (KeyError, TypeError, ValueError) as error:
        raise EpisodeError(f"the judge's answer cannot be read: {error!r}", where=role, kind="protocol") from error
    calls = [
        ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])
    ]
    sequence = TokenSequence(Trajectory(role, role, 0, [], [], [], [], []), drawn)  # kept by nobody
    content = message["content"]
    spoken = {**assistant(content), **({"tool_calls": message["tool_calls"]} if calls else {})}
    sequence.messages = [*(plain(m) for m in messages), spoken]
    return Answer(content, [], reason, sequence, [], content, calls)


def _text_only(role: str) -> EpisodeError:
    return EpisodeError(f"role {role!r} is a remote judge: it only chats", where="workflow", kind="unsupported")

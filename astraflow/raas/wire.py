"""What clients send to a pool's server, and what they get: OpenAI's chat completions, and token ids in and out.

Fields that would change what is sampled and that are not supported are refused, never left out silently; all others
that are not known are ignored, as servers do.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from astraflow.trajectory import Sampler, to_runs
from astraflow.workflows.sequence import Answer
from storage.errors import EpisodeError

Json = dict[str, Any]


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both routes know about sampling; None: the policy's own setting."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Json | None = None

    def check(self) -> None:
        """Raise ``EpisodeError`` (``unsupported``) for a setting that is not honoured here."""
        for name, neutral in (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1)):
            if getattr(self, name) not in (None, neutral):
                raise _unsupported(name)
        if self.logit_bias:
            raise _unsupported("logit_bias")
        if not 1 <= (self.n or 1) <= 64:
            raise _unsupported("n beyond 1 to 64")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise _unsupported("max_tokens below 1")

    def sampler(self, usual: Sampler) -> Sampler:
        """The policy's settings with what the client asked for."""
        given = {
            name: value for name in ("temperature", "top_p", "min_p") if (value := getattr(self, name)) is not None
        }
        if self.top_k is not None:
            given["top_k"] = max(0, self.top_k)  # -1 is «all» elsewhere
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return replace(usual, **given)


class ChatRequest(SamplingFields, kw_only=True):
    """``POST /v1/chat/completions``."""

    model: str
    messages: list[Json]
    tools: list[Json] | None = None
    tool_choice: Any = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: Json | None = None
    logprobs: bool | None = None
    response_format: Json | None = None
    return_token_ids: bool = False

    def check(self) -> None:
        super().check()
        if not self.messages or any(not isinstance(m.get("role"), str) for m in self.messages):
            raise EpisodeError("messages must be a list of objects with a role", kind="request")
        if self.tool_choice not in (None, "auto", "none"):
            raise _unsupported("tool_choice other than auto and none")
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise _unsupported("response_format")
        if self.stream and (self.n or 1) > 1:
            raise _unsupported("stream with n > 1")

    @property
    def shown_tools(self) -> list[Json] | None:
        return None if self.tool_choice == "none" else self.tools or None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class GenerateSampling(SamplingFields, kw_only=True):
    """``sampling_params`` of ``GenerateRequest``."""

    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False


class GenerateRequest(msgspec.Struct, kw_only=True):
    """``POST /inference/v1/generate``: token ids in."""

    token_ids: list[int]
    sampling_params: GenerateSampling = msgspec.field(default_factory=GenerateSampling)
    model: str = ""
    request_id: str = ""
    stream: bool = False


class EndOfEpisode(msgspec.Struct, kw_only=True):
    """``POST /v1/episodes/ID/end``."""

    reward: float | None = None
    rewards: dict[str, float] = {}
    reward_parts: dict[str, float] = {}
    meta: dict[str, str] = {}
    error: str = ""


def chat_body(request: ChatRequest, answers: Sequence[Answer]) -> Json:
    """The whole answer to a chat request."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [_choice(request, index, answer) for index, answer in enumerate(answers)],
        "usage": usage(answers),
    }


def _choice(request: ChatRequest, index: int, answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.content or (None if answer.tool_calls else "")}
    if answer.tool_calls:
        message["tool_calls"] = tool_calls(answer)
    choice: Json = {"index": index, "message": message, "finish_reason": finish_reason(answer), "logprobs": None}
    if request.logprobs:
        choice["logprobs"] = token_logprobs(answer)
    if request.return_token_ids:
        choice["token_ids"] = answer.token_ids
    return choice


def finish_reason(answer: Answer) -> str:
    """As OpenAI names it."""
    return "tool_calls" if answer.tool_calls else answer.finish_reason


def tool_calls(answer: Answer) -> list[Json]:
    """The calls of an answer; their arguments as the text of JSON."""
    return [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in answer.tool_calls
    ]


def usage(answers: Sequence[Answer]) -> Json:
    """Tokens in and out."""
    prompt = max((answer.prompt_tokens for answer in answers), default=0)
    completion = sum(len(answer.token_ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def token_logprobs(answer: Answer) -> Json:
    """Log-probs by token id: ids are the truth, and texts of single tokens are not unique."""
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    content: list[Json] = [
        {"token": f"token_id:{id}", "logprob": logprob, "bytes": None, "top_logprobs": []} for id, logprob in pairs
    ]
    return {"content": content}


def generate_body(request: GenerateRequest, answers: Sequence[Answer]) -> Json:
    """The whole answer to a generate request; ``weight_versions`` are spans of the versions that sampled."""
    choices = []
    for index, answer in enumerate(answers):
        row = answer.sequence.trajectory
        starts, versions = to_runs(row.versions[len(row.versions) - len(answer.token_ids) :])
        ends = [*starts[1:], len(answer.token_ids)]
        spans = [{"start": s, "end": e, "version": str(v)} for s, e, v in zip(starts, ends, versions, strict=True)]
        choices.append(
            {
                "index": index,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "logprobs": token_logprobs(answer),
                "weight_versions": spans,
            }
        )
    return {
        "request_id": request.request_id or uuid.uuid4().hex,
        "choices": choices,
        "usage": usage(answers),
    }


def models_body(names: Sequence[str]) -> Json:
    """``GET /v1/models``."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "astraflow"} for name in names]
    return {"object": "list", "data": models}


def error_body(message: str, code: str) -> Json:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _unsupported(what: str) -> EpisodeError:
    return EpisodeError(f"{what} is not supported", where="request", kind="unsupported")

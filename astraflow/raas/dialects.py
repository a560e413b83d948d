"""How inference servers are asked to continue token ids, and what they answer.

Each dialect is token ids in and token ids with log-probs out; a server that only knows text can play a judge
(``remote.py``), not a policy whose tokens are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from astraflow.raas.engine import GenerationRequest
from storage.errors import EpisodeError

Json = dict[str, Any]
_SIGNED = 2**63 - 1  # what servers take as a seed


@dataclass(frozen=True, slots=True)
class Said:
    """What a server sampled. ``version`` is its word for its weights, "" if it has none."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The route, the body of a request, and the reading of an answer. ``reload`` makes the server read a folder.

    ``tells_cuts``: its log-probs are those of what is left after top-p, top-k and min-p.
    """

    path: str
    body: Callable[[GenerationRequest, str], Json]
    read: Callable[[Json], Said]
    reload: Callable[[str, int], tuple[str, Json]] | None = None
    tells_cuts: bool = True


def _vllm_sampling(request: GenerationRequest) -> Json:
    """What both of vLLM's routes call the same."""
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "seed": request.seed & _SIGNED,
        "stop": list(request.stop),
        "stop_token_ids": sorted(request.stop_token_ids),
    }


def _vllm_body(request: GenerationRequest, model: str) -> Json:
    return {
        "model": model,
        "prompt": list(request.prompt_ids),
        **_vllm_sampling(request),
        "include_stop_str_in_output": True,
        "logprobs": 0,
        "return_token_ids": True,
    }


def _vllm_read(answer: Json) -> Said:
    [choice] = answer["choices"]
    return Said(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])


def _generate_body(request: GenerationRequest, model: str) -> Json:
    sampling = {**_vllm_sampling(request), "logprobs": 1}
    return {"model": model, "token_ids": list(request.prompt_ids), "sampling_params": sampling}


def _generate_read(answer: Json) -> Said:
    [choice] = answer["choices"]
    logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
    spans = choice.get("weight_versions") or [{}]
    return Said(choice["token_ids"], logprobs, choice["finish_reason"], str(spans[-1].get("version", "")))


def _sglang_body(request: GenerationRequest, model: str) -> Json:
    sampling = {
        "max_new_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k or -1,
        "min_p": request.min_p,
        "stop": list(request.stop),
        "stop_token_ids": sorted(request.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    return {"input_ids": list(request.prompt_ids), "sampling_params": sampling, "return_logprob": True}


def _sglang_read(answer: Json) -> Said:
    meta = answer["meta_info"]
    sampled = meta["output_token_logprobs"]  # [log-prob, id, text]
    reason = meta["finish_reason"]["type"]
    return Said(
        [int(t[1]) for t in sampled], [float(t[0]) for t in sampled], reason, str(meta.get("weight_version", ""))
    )


def _sglang_reload(folder: str, version: int) -> tuple[str, Json]:
    return "/update_weights_from_disk", {"model_path": folder, "weight_version": str(version), "flush_cache": True}


def _no_tokens(*_: object) -> Any:
    raise EpisodeError("a server that only chats has no token ids", kind="unsupported")


DIALECTS = {
    "chat": Dialect("/v1/chat/completions", _no_tokens, _no_tokens),
    "vllm": Dialect("/v1/completions", _vllm_body, _vllm_read),
    "generate": Dialect("/inference/v1/generate", _generate_body, _generate_read),
    # Its sampler takes the log-probs after the temperature and before it cuts.
    "sglang": Dialect("/generate", _sglang_body, _sglang_read, _sglang_reload, tells_cuts=False),
}


def read_answer(dialect: Dialect, answer: Any, where: str) -> Said:
    """What a server said. Raises ``EpisodeError`` (``protocol``) if it is not what was asked for."""
    try:
        said = dialect.read(answer)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _wrong(f"the answer cannot be read: {type(error).__name__}: {error}", where) from error
    if len(said.logprobs) != len(said.token_ids) or any(p is None for p in said.logprobs):
        raise _wrong("not every token has a log-prob", where)
    if not said.token_ids:
        raise EpisodeError("the answer has no tokens", where=where, kind="empty_answer")
    if said.finish_reason not in ("stop", "length"):
        raise EpisodeError(f"the answer ended with {said.finish_reason!r}", where=where, kind="aborted")
    return said


def _wrong(what: str, where: str) -> EpisodeError:
    return EpisodeError(what, where=where, remedy="Is it the dialect that the server speaks?", kind="protocol")

"""The inference seam: token ids in, token ids with log-probs and versions out.

Token ids are the truth on both sides, so nothing that is trained on was ever tokenised again. An
engine serves one policy; its pool decides when new weights are loaded, the engine finds the safe point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from storage.errors import EpisodeError

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate


Progress = Callable[[Sequence[int]], None]
"""Told on the event loop which tokens came since it was last told, for whoever streams. An engine may tell it late,
or not at all; it never tells a token that the ``Generation`` does not keep."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One continuation to sample.

    ``temperature`` 0 means greedy (log-probs then at temperature 1). The same ``seed``, prompt and weights
    give the same tokens whatever else is decoded beside it, as far as the matrix products round alike.
    """

    policy: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_token_ids: frozenset[int]
    temperature: float = 1.0
    seed: int = 0
    top_p: float = 1.0  # 1: all tokens
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0  # 0: all tokens
    stop: tuple[str, ...] = ()  # texts that end an answer; the tokens that complete one are kept
    progress: Progress | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Generation:
    """What was sampled; the lists have one entry a token, the stop token included.

    ``logprobs`` are of the sampled token under the distribution it was drawn from (after temperature, top-k, top-p
    and min-p); ``versions`` are those of the weights that drew it. ``finish_reason`` is ``stop`` or ``length``.
    """

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: str
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Engine(Protocol):
    """One policy's inference engine."""

    @property
    def version(self) -> int:
        """The version that samples now; -1 before the first ``load``."""
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample. Raises ``EngineError`` if the engine is dead, ``EpisodeError`` if the request cannot be served.

        A setting that the engine does not have is refused (kind ``unsupported``), never left out silently.
        """
        ...

    async def load(self, update: WeightUpdate) -> None:
        """Take new weights at a safe point; returns when they sample.

        ``DataError`` if they do not fit the model: the old ones stay. Every token sampled from the new weights
        is delivered after ``load`` returned.
        """
        ...

    async def close(self) -> None:
        """End; whoever waits gets ``EngineError``."""
        ...


def fit_context(request: GenerationRequest, max_context: int | None) -> GenerationRequest:
    """The request with ``max_tokens`` cut to what a context of so many tokens leaves; None: any length.

    Raises ``EpisodeError`` (``too_long``, ``empty_prompt``) if nothing can be sampled.
    """
    room = request.max_tokens if max_context is None else max_context - len(request.prompt_ids)
    if not request.prompt_ids or room < 1:
        raise EpisodeError(
            f"a prompt of {len(request.prompt_ids)} tokens cannot be continued",
            where=f"policy {request.policy}",
            remedy=f"The model's context is {max_context} tokens: shorten the prompt",
            kind="too_long" if request.prompt_ids else "empty_prompt",
        )
    return request if room >= request.max_tokens else replace(request, max_tokens=room)

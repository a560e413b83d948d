"""Batched decoding of any Hugging Face causal LM: prefill, join, step, leave.

Rows of one batch share a KV cache that is padded on the left. Newcomers are prefilled apart (equal prompts
once) and joined to the running rows; rows that are done are cut out when a quarter of the batch is dead, so
that the cache is not copied at every end. Nothing here knows threads, weights or the store.

Invariant: row i of ``rows``, of the cache, of the mask and of the per-row tensors are the same request.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from astraflow.raas.engine import GenerationRequest
from astraflow.raas.sampling import Support, sample, uniforms

_DEAD_SHARE = 0.25
_TOKENS_A_CHARACTER = 4  # at most, in UTF-8 bytes
Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True, eq=False)
class Row:
    """A request being decoded and what was sampled so far; ``finish_reason`` is set when it is done."""

    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = ""
    decode: Decode | None = None  # only where the request has stop texts

    @property
    def done(self) -> bool:
        return self.finish_reason != ""

    def add(self, token: int, logprob: float, version: int) -> None:
        """Record one sampled token."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.request.stop_token_ids or self._ends_a_stop_text():
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.request.max_tokens:
            self.finish_reason = "length"

    def _ends_a_stop_text(self) -> bool:
        """Whether the newest token completed a stop text: an earlier one would have ended the row before."""
        if not self.request.stop or self.decode is None:
            return False
        window = _TOKENS_A_CHARACTER * (max(map(len, self.request.stop)) + 1)
        tail = self.decode(self.token_ids[-window:])
        return any(text in tail for text in self.request.stop)


class Decoder:
    """The running batch of one model. All calls come from one thread, under ``torch.inference_mode``."""

    def __init__(self, model: torch.nn.Module, *, pad_id: int = 0) -> None:
        self.rows: list[Row] = []
        self._model = model
        self._pad_id = pad_id
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        self._device = next(model.parameters()).device
        self._batch = _Batch.empty(self._device)
        self._support: Support | None = None  # of the rows

    @property
    def live(self) -> int:
        """Rows that are not done."""
        return sum(not row.done for row in self.rows)

    def admit(self, rows: Sequence[Row], version: int) -> None:
        """Prefill ``rows``, sample the first token of each and join them to the batch."""
        prompts: dict[tuple[int, ...], int] = {}
        index = [prompts.setdefault(row.request.prompt_ids, len(prompts)) for row in rows]
        longest = max(map(len, prompts))
        ids = torch.tensor([[self._pad_id] * (longest - len(p)) + list(p) for p in prompts], device=self._device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self._device)
        cache = DynamicCache()
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp_(min=0), cache)  # [U, V]
        pick = torch.tensor(index, device=self._device)
        joined = _Batch.of(rows, cache, mask).select(pick, [row.request for row in rows])
        joined.last = self._draw(rows, logits[pick], joined, version, self._support_of(rows))
        self._batch = self._batch.join(joined) if self.rows else joined
        self.rows.extend(rows)
        self._support = self._support_of(self.rows)

    def step(self, version: int) -> None:
        """Sample one more token for every row that is not done."""
        batch = self._batch
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(len(self.rows), 1)], dim=1)
        positions = batch.mask.sum(-1, keepdim=True) - 1
        logits = self._forward(batch.last[:, None], batch.mask, positions, batch.cache)
        batch.last = self._draw(self.rows, logits, batch, version, self._support)

    def drop_done(self, *, force: bool = False) -> list[Row]:
        """Cut done rows out if they are many (or ``force``) and return those that were cut."""
        keep = [i for i, row in enumerate(self.rows) if not row.done]
        dead = len(self.rows) - len(keep)
        if dead == 0 or (keep and not force and dead < _DEAD_SHARE * len(self.rows)):
            return []
        gone = [row for row in self.rows if row.done]
        self.rows = [self.rows[i] for i in keep]
        self._support = self._support_of(self.rows)
        if keep:
            index = torch.tensor(keep, device=self._device)
            self._batch = self._batch.select(index, [row.request for row in self.rows]).trimmed()
        else:
            self._batch = _Batch.empty(self._device)
        return gone

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """Logits [B, V] of the last position; extends ``cache`` in place."""
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: cache},
            **self._last_only,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _support_of(self, rows: Sequence[Row]) -> Support | None:
        return Support.of([row.request for row in rows], self._device)

    def _draw(
        self, rows: Sequence[Row], logits: torch.Tensor, batch: _Batch, version: int, support: Support | None
    ) -> torch.Tensor:
        """Sample a token a row, record it in the rows that are not done, and return all of them, [B]."""
        positions = np.fromiter((len(row.token_ids) for row in rows), dtype=np.uint64, count=len(rows))
        uniform = torch.from_numpy(uniforms(batch.seeds, positions)).to(self._device)
        ids, logprobs = sample(logits, batch.temperatures, uniform, support)
        for row, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            if not row.done:
                row.add(token, logprob, version)
        return ids


@dataclass(slots=True)
class _Batch:
    """The tensors of the rows: KV cache [B, H, T, D] a layer, mask [B, T], last token [B]."""

    cache: DynamicCache
    mask: torch.Tensor
    last: torch.Tensor
    temperatures: torch.Tensor
    seeds: np.ndarray[Any, np.dtype[np.uint64]]

    @classmethod
    def empty(cls, device: torch.device) -> _Batch:
        zeros = torch.zeros(0, dtype=torch.long, device=device)
        return cls(DynamicCache(), zeros[:, None], zeros, zeros.float(), np.zeros(0, np.uint64))

    @classmethod
    def of(cls, rows: Sequence[Row], cache: DynamicCache, mask: torch.Tensor) -> _Batch:
        batch = cls.empty(mask.device)
        batch.cache, batch.mask, batch.last = cache, mask, mask[:, 0]
        return batch

    def select(self, index: torch.Tensor, requests: Sequence[GenerationRequest]) -> _Batch:
        """The rows ``index`` (repeats allowed); per-row constants come from ``requests``."""
        self.cache.batch_select_indices(index)
        temperatures = torch.tensor([r.temperature for r in requests], dtype=torch.float32, device=index.device)
        seeds = np.array([r.seed & 0xFFFFFFFFFFFFFFFF for r in requests], dtype=np.uint64)
        return _Batch(self.cache, self.mask[index], self.last[index], temperatures, seeds)

    def join(self, other: _Batch) -> _Batch:
        """These rows, then the other's; the shorter cache is padded on the left."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        cache = DynamicCache()
        layers: list[tuple[Any, Any]] = list(zip(self.cache.layers, other.cache.layers, strict=True))
        for number, (mine, theirs) in enumerate(layers):
            keys = torch.cat([_pad_time(mine.keys, width), _pad_time(theirs.keys, width)])
            values = torch.cat([_pad_time(mine.values, width), _pad_time(theirs.values, width)])
            cache.update(keys, values, number)
        pad = torch.nn.functional.pad
        masks = [pad(mask, (width - mask.shape[1], 0)) for mask in (self.mask, other.mask)]
        return _Batch(
            cache,
            torch.cat(masks),
            torch.cat([self.last, other.last]),
            torch.cat([self.temperatures, other.temperatures]),
            np.concatenate([self.seeds, other.seeds]),
        )

    def trimmed(self) -> _Batch:
        """Without the columns that are padding in every row."""
        used = self.mask.any(0).nonzero()
        start = int(used[0]) if len(used) else 0
        if start:
            self.mask = self.mask[:, start:]
            layers: list[Any] = self.cache.layers
            for layer in layers:
                layer.keys, layer.values = layer.keys[:, :, start:], layer.values[:, :, start:]
        return self


def _pad_time(state: torch.Tensor, width: int) -> torch.Tensor:
    """Pad [B, H, T, D] on the left of T up to ``width``."""
    return torch.nn.functional.pad(state, (0, 0, width - state.shape[2], 0))

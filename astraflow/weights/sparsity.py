"""How sparse the changes of a run's weights are: by version, layer, kind of tensor and learning rate.

What a step changes in bf16 depends on the learning rate, on the size of the weights and so on the kind of tensor; it
decides what a version costs to ship. The counts are taken from the weights themselves, version after version, so that
they hold for any coding, and a merge or an anchor on the way makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from astraflow.pages.svg import Chart, Line, picture
from astraflow.weights.inspection import stored_tensors
from astraflow.weights.kernels import Words
from astraflow.weights.layout import words_of
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
_COLORS = ("#1769aa", "#c2410c", "#2e7d32", "#7b1fa2", "#b8860b", "#00838f", "#ad1457", "#5d4037", "#455a64", "#9e9d24")
GROUPINGS = ("version", "layer", "kind", "lr")


@dataclass(frozen=True, slots=True)
class Change:
    """What one version changed in the tensors of one layer and kind."""

    version: int
    lr: float | None  # None where the run does not say
    layer: int | None  # None outside of the layers
    kind: str
    words: int
    changed: int
    size_bytes: int  # of the whole version's delta
    full_bytes: int


@dataclass(frozen=True, slots=True)
class Share:
    """Changed words of all words, over everything of one group."""

    group: int | float | str | None
    words: int
    changed: int
    share: float


def kind_of(tensor: str) -> str:
    """``model.layers.3.self_attn.q_proj.weight`` is a ``q_proj``; norms and embeddings are of their own kinds."""
    parts = [part for part in tensor.split(".") if part not in ("weight", "bias", "default")]
    if any(part.startswith("lora_") for part in parts):
        return ".".join(parts[-2:])
    name = parts[-1] if parts else tensor
    return "norm" if "norm" in name else name


def layer_of(tensor: str) -> int | None:
    """The layer's number, or None for a tensor outside of the layers."""
    found = _LAYER.search(tensor)
    return int(found[1]) if found else None


def measure(
    store: ObjectStore,
    keys: RunKeys,
    policy: str,
    *,
    rates: Mapping[int, float] | None = None,
    first: int = 1,
    last: int | None = None,
) -> Iterator[Change]:
    """The changes of versions ``first`` to ``last``, one row a version, layer and kind.

    ``rates`` has learning rates by version. Versions that repeat a step (a trainer's new life) are left out, and those
    that can't be had (damaged, given up), or whose base can't. Holds the weights twice.
    """
    reader = Subscriber(store, keys, policy)
    newest = reader.newest()
    before: dict[str, Words] = {}
    step_before = -1
    for version in range(max(0, first - 1), (newest if last is None else min(last, newest)) + 1):
        try:
            update, manifest = reader.fetch(version), reader.manifest(version)
        except (DataError, NotFound):
            before = {}
            continue
        tensors = {name: words_of(tensor) for name, tensor in stored_tensors(update).items()}
        same = before.keys() == tensors.keys() and all(before[name].size == tensors[name].size for name in tensors)
        if same and manifest.step > step_before:
            groups: dict[tuple[int | None, str], list[int]] = {}
            for name, words in tensors.items():
                counts = groups.setdefault((layer_of(name), kind_of(name)), [0, 0])
                counts[0] += words.size
                counts[1] += int(np.count_nonzero(words != before[name])) if name in update.changed else 0
            for (layer, kind), (size, changed) in groups.items():
                rate = (rates or {}).get(version)
                yield Change(version, rate, layer, kind, size, changed, manifest.size_bytes, manifest.full_bytes)
        for name, words in tensors.items():
            if not same or name in update.changed:
                before[name] = words.copy()
        before, step_before = {name: before[name] for name in tensors}, manifest.step


def grouped(changes: Iterable[Change], by: str) -> list[Share]:
    """Shares by ``version``, ``layer``, ``kind`` or ``lr``, in that order; what has none of it comes last."""
    sums: dict[int | float | str | None, list[int]] = {}
    for change in changes:
        counts = sums.setdefault(getattr(change, by), [0, 0])
        counts[0] += change.words
        counts[1] += change.changed
    order = sorted(sums, key=lambda group: (group is None, group if group is not None else 0))
    return [
        Share(group, words, changed, changed / max(1, words)) for group in order for words, changed in [sums[group]]
    ]


def chart(changes: list[Change], policy: str) -> str:
    """An SVG: the changed share of the words over the versions, in all, by kind of tensor and by layer."""
    rates = [share.group for share in grouped(changes, "lr")]
    overall = [
        Line(_points([c for c in changes if c.lr == rate]), _COLORS[at % len(_COLORS)], _rate_name(rate), width=2.5)
        for at, rate in enumerate(rates)
    ]
    kinds = [str(share.group) for share in sorted(grouped(changes, "kind"), key=lambda share: -share.words)][:8]
    by_kind = [
        Line(_points([c for c in changes if c.kind == kind]), _COLORS[at % len(_COLORS)], kind)
        for at, kind in enumerate(kinds)
    ]
    layers = [share.group for share in grouped(changes, "layer") if isinstance(share.group, int)]
    by_layer = [
        Line(_points([c for c in changes if c.layer == layer]), _shade(at, len(layers)), "", width=1.2)
        for at, layer in enumerate(layers)
    ]
    charts = [Chart(f"Changed weights of {policy}", "% of the words", overall, low=0)]
    if by_kind:
        charts.append(Chart("By kind of tensor", "%", by_kind, low=0))
    if by_layer:
        charts.append(Chart("By layer", "%, light: first, dark: last", by_layer, low=0))
    return picture(charts, x_label="version")


def _points(changes: list[Change]) -> list[tuple[float, float]]:
    return [(float(share.group or 0), 100 * share.share) for share in grouped(changes, "version")]


def _rate_name(rate: object) -> str:
    return "learning rate not known" if rate is None else f"lr {rate:g}"


def _shade(at: int, count: int) -> str:
    """From light to dark blue."""
    part = at / max(1, count - 1)
    red, green, blue = (round(light + (dark - light) * part) for light, dark in ((170, 10), (205, 50), (235, 100)))
    return f"#{red:02x}{green:02x}{blue:02x}"

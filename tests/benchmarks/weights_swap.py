"""How long an engine stands still for a new version, beside a full reload: the transformers engine, while it decodes.

    python tests/benchmarks/weights_swap.py [--model FOLDER] [--rate 3e-6] [--rounds 8] [--batch 8] [--json]

``FOLDER`` is a Hugging Face folder (``python -m infra.smollm2`` makes one of 135M parameters); without one the tiny
built-in model is taken, whose figures say little. Versions are the model's weights, moved by one learning rate as
fp32 masters and cast to bf16; they are published, fetched and verified by the real publisher and subscriber, while
the engine decodes a batch without an end. Then the engine is given one of

- ``places``: the update as it is, so that only the elements that changed are written;
- ``tensors``: the same update without places, so that each tensor that changed is copied;
- ``reload``: what an engine without updates does while it stands still: read the whole model's file and load it.

``pause_ms`` is the longest time between two forward passes while the weights were being loaded, less the median time
between passes (medians over the rounds, which take turns). ``fetch_ms`` passes beside decoding, not in the pause.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from astraflow.models import build_tiny_qwen3, load_causal_lm
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.transformers_engine import TransformersEngine
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from astraflow.weights.update import WeightUpdate
from storage import open_store
from storage.keys import RunKeys

KEYS = RunKeys("benchmark")
MODES = ("places", "tensors", "reload")
TOKENS = 64
CALM = 5  # passes before and after a load


class Passes:
    """When the model's forward passes began and ended."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        model.register_forward_pre_hook(lambda *_: self.began.append(time.perf_counter()))
        model.register_forward_hook(lambda *_: self.ended.append(time.perf_counter()))

    def gaps(self, start: float, stop: float) -> list[float]:
        """Times between two passes that overlap [start, stop]."""
        pairs = zip(self.ended, self.began[1:], strict=False)
        return [began - ended for ended, began in pairs if began > start and ended < stop]

    async def more(self, count: int) -> None:
        """Wait for so many passes from now on."""
        goal = len(self.ended) + count
        while len(self.ended) < goal:
            await asyncio.sleep(0.01)


def versions(model: Any, rate: float) -> Iterator[dict[str, torch.Tensor]]:
    """bf16 weights whose fp32 masters move by ``rate``; tied names share a tensor."""
    generator = torch.Generator().manual_seed(0)
    masters = {name: tensor.float() for name, tensor in model.named_parameters()}
    tied = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    owners = {tensor.data_ptr(): name for name, tensor in model.named_parameters()}
    while True:
        cast = {name: tensor.bfloat16() for name, tensor in masters.items()}
        yield {name: cast[owners[pointer]] for name, pointer in tied.items() if pointer in owners}
        for tensor in masters.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=rate * 0.6)


async def decode_for_ever(engine: TransformersEngine, batch: int, count: list[int]) -> None:
    """Keep ``batch`` answers going."""

    async def one(seed: int) -> None:
        for turn in itertools.count():
            request = GenerationRequest(
                policy="policy",
                prompt_ids=(1, 2, 3, 4),
                max_tokens=TOKENS,
                stop_token_ids=frozenset(),
                seed=1000 * seed + turn,
            )
            count[0] += len((await engine.generate(request)).token_ids)

    await asyncio.gather(*(one(seed) for seed in range(batch)))


def reloading(model: torch.nn.Module, file: Path, update: WeightUpdate) -> WeightUpdate:
    """An update that, in place of being written, has the engine's thread read and load the whole model's file."""

    class Reload(WeightUpdate):
        def write_into(self, targets: Any, *, everything: bool) -> None:
            model.load_state_dict(load_file(file), strict=False)
            model.tie_weights()  # type: ignore[operator]

    given = {field.name: getattr(update, field.name) for field in dataclasses.fields(update)}
    return Reload(**given)


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    model = load_causal_lm(folder, torch.float32)
    moving = versions(load_causal_lm(folder, torch.bfloat16), options.rate)
    passes, found = Passes(model), {mode: [] for mode in (*MODES, "fetch")}
    changed: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        store = open_store(place)
        out = Publisher(store, KEYS, "policy", anchor_every=10**6)
        reader = Subscriber(store, KEYS, "policy")
        engine = TransformersEngine(model, max_batch=options.batch, threads=options.threads)
        first = next(moving)
        out.publish(first, step=0, incarnation=0, batch=-1)
        file = Path(place) / "model.safetensors"
        save_file({name: tensor.clone() for name, tensor in first.items()}, file)
        await engine.load(reader.fetch(0))
        count = [0]
        decoding = asyncio.create_task(decode_for_ever(engine, options.batch, count))
        await passes.more(CALM)
        for turn in range(1, options.rounds * len(MODES) + 1 + len(MODES)):
            manifest = await asyncio.to_thread(out.publish, next(moving), step=turn, incarnation=0, batch=turn - 1)
            mode = MODES[turn % len(MODES)]
            started = time.perf_counter()
            update = await asyncio.to_thread(reader.fetch, turn)
            fetched = time.perf_counter()
            given: dict[str, Callable[[], WeightUpdate]] = {
                "places": lambda update=update: update,
                "tensors": lambda update=update: dataclasses.replace(update, places={}),
                "reload": lambda update=update: reloading(model, file, update),
            }
            await passes.more(CALM)
            begun = time.perf_counter()
            await engine.load(given[mode]())
            ended = time.perf_counter()
            if mode == "reload":  # the file has version 0: what the next update counts on is put back
                await engine.load(dataclasses.replace(update, changed=frozenset(update.tensors), places={}))
            await passes.more(CALM)
            if turn > len(MODES):  # the first of each warms up
                pause_s = max(passes.gaps(begun, ended))
                found[mode].append(pause_s - statistics.median(passes.gaps(0, begun)))
                found["fetch"].append(fetched - started)
                changed.append(manifest.changed / (manifest.full_bytes / 2))
        decoding.cancel()
        await asyncio.gather(decoding, return_exceptions=True)
        await engine.close()
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "changed_share": statistics.mean(changed),
        "batch": options.batch,
        "step_ms": 1000 * statistics.median(e - b for b, e in zip(passes.began, passes.ended, strict=False)),
        "fetch_ms": 1000 * statistics.median(found["fetch"]),
        "pause_ms": {mode: 1000 * statistics.median(found[mode]) for mode in MODES},
        "pause_of_reload": statistics.median(found["places"]) / statistics.median(found["reload"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rate", type=float, default=3e-6)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as built:
        folder = options.model
        if folder is None:
            folder = Path(built)
            build_tiny_qwen3(folder, 0)
        found = asyncio.run(measure(folder.expanduser(), options))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{found['parameters']:,} parameters, {found['changed_share']:.2%} changed a version, {options.batch} answers "
        f"at once, {found['step_ms']:.0f} ms a decode step; fetched beside it in {found['fetch_ms']:.0f} ms"
    )
    for mode, pause_ms in found["pause_ms"].items():
        print(f"{mode:8} {pause_ms:8.1f} ms")


if __name__ == "__main__":
    main()

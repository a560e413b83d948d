"""Log-prob parity of a run: what its engine said of each token beside what transformers says with the same version.

    python -m tests.vllm.parity STORE RUN POLICY [--rows 64]

A line an engine that played the policy, and below it a line a version. Rows of one version only: what a mixed row's KV
cache holds is the engine's policy. fp32, one plain forward pass a row.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    mixed_rows: int  # of several versions, which are not compared
    differences: dict[int, list[float]] = field(repr=False)  # by version

    @property
    def all(self) -> list[float]:
        """Those of every version."""
        return [each for found in self.differences.values() for each in found]

    @property
    def tokens(self) -> int:
        """How many tokens were compared."""
        return len(self.all)

    @property
    def mean(self) -> float:
        """The mean over all tokens."""
        return statistics.fmean(self.all)

    @property
    def share_over_limit(self) -> float:
        """Which part of the tokens differs by more than ``LIMIT``."""
        return sum(each > LIMIT for each in self.all) / self.tokens

    def lines(self) -> Iterator[str]:
        """The figures as rows of a table."""
        yield _line(f"{self.engine}, {self.rows} answers", self.all)
        for version, found in sorted(self.differences.items()):
            yield _line(f"{self.engine}, version {version}", found)


def _line(name: str, found: list[float]) -> str:
    over = sum(each > LIMIT for each in found) / len(found)
    return f"| {name} | {len(found)} | {statistics.fmean(found):.4f} | {max(found):.4f} | {over:.2%} |"


def parity(store: ObjectStore, run: str, policy: str, *, most_rows: int = 64) -> list[Parity]:
    """Compare the first rows of each version, ``most_rows`` in all; a comparison an engine, by name."""
    keys = RunKeys(run)
    subscriber = Subscriber(store, keys, policy)
    rows = _rows(store, keys, policy)
    chosen: dict[str, list[dict[str, Any]]] = {}
    for engine in sorted({row["engine"] for row in rows}):
        chosen[engine] = _chosen([row for row in rows if row["engine"] == engine], most_rows)
    found: dict[str, dict[int, list[float]]] = {engine: {} for engine in chosen}
    with tempfile.TemporaryDirectory() as folder:
        download_model_files(store, keys, policy, Path(folder))
        model: Any = empty_causal_lm(Path(folder), torch.float32)
        for version in sorted({row["version_id"][0] for played in chosen.values() for row in played}):
            load_tensors(model, subscriber.fetch(version), everything=True)
            for engine, played in chosen.items():
                for row in (row for row in played if row["version_id"] == [version]):
                    found[engine].setdefault(version, []).extend(_differences(model, row))
    mixed = Counter(row["engine"] for row in rows if not _pure(row))
    return [Parity(engine, len(chosen[engine]), mixed[engine], each) for engine, each in found.items() if each]


def _pure(row: dict[str, Any]) -> bool:
    return len(set(row["version_id"])) == 1


def _chosen(rows: list[dict[str, Any]], most_rows: int) -> list[dict[str, Any]]:
    """The first rows of each version, as many of one as of another."""
    by_version: dict[int, list[dict[str, Any]]] = {}
    for row in filter(_pure, rows):
        by_version.setdefault(row["version_id"][0], []).append(row)
    each = max(1, most_rows // max(1, len(by_version)))
    return [row for found in by_version.values() for row in found[:each]]


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
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("run")
    parser.add_argument("policy")
    parser.add_argument("--rows", type=int, default=64)
    given = parser.parse_args()
    print("| answers of | tokens | mean | most | over 0.1 |\n|---|---|---|---|---|")
    for found in parity(open_store(given.store), given.run, given.policy, most_rows=given.rows):
        print("\n".join(found.lines()))
        print(f"({found.mixed_rows} more answers of {found.engine} are of mixed versions)")


if __name__ == "__main__":
    main()

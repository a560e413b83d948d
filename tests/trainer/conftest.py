"""A small model, and a run whose batches are all recorded before the trainer starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from astraflow.config import RunConfig
from astraflow.problems import data_hash, load_problems, problems_table
from astraflow.records import AnyDecision, AnyFact, Batched, DecisionRecord, FactRecord, decode, encode, new_id
from astraflow.trajectory import SCHEMA
from storage import open_store
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore
from storage.tables import write_table

VOCABULARY = 128


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, d = 64, vocabulary 128, fp32, tied."""
    folder = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(7)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    ).save_pretrained(folder)
    return folder


def row(group: int, rng: np.random.Generator, **changes: Any) -> dict[str, Any]:
    """One trajectory: random tokens of random length, log-probs near those of an untrained model."""
    prompt, response = int(rng.integers(2, 6)), int(rng.integers(1, 7))
    mask = rng.random(response) < 0.8
    mask[0] = True
    values = {
        "trajectory_id": f"{group}-0",
        "group_id": group,
        "pool": "local",
        "prompt_ids": rng.integers(3, VOCABULARY, prompt).tolist(),
        "response_ids": rng.integers(3, VOCABULARY, response).tolist(),
        "logprobs": (-np.log(VOCABULARY) + 0.1 * rng.standard_normal(response)).tolist(),
        "loss_mask": mask.tolist(),
        "version_start": [0],
        "version_id": [0],
        "version_min": 0,
        "version_max": 0,
        "reward": float(rng.integers(0, 2)),
        "temperature": 1.0,
    }
    return values | changes


@dataclass
class Run:
    """A run's store, and a manager that writes what it is told to."""

    store: ObjectStore
    config: RunConfig
    keys: RunKeys
    seq: int = 0
    group: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def decide(self, *decisions: AnyDecision) -> None:
        """Append one decision record."""
        record = DecisionRecord(id=new_id(), epoch=1, now=0.0, cursors={}, observations={}, decisions=list(decisions))
        self.seq = NumberedLog(self.store, self.keys.decision).append(encode(record), start=self.seq) + 1

    def batched(
        self, n: int, parts: int = 3, members: int = 4, change: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ) -> Batched:
        """A batch of random parts in two objects; ``change`` alters each row."""
        groups = list(range(self.group, self.group + parts))
        self.group += parts
        rows = [[row(group, self.rng) for _ in range(members)] for group in groups]
        if change is not None:
            rows = [[change(one) for one in part] for part in rows]
        return self.batch_of(n, groups, rows)

    def batch_of(self, n: int, groups: Sequence[int], rows: Sequence[Sequence[dict[str, Any]]]) -> Batched:
        """Write the rows (even groups in one object, odd ones in another) and return the decision."""
        paths, hashes, starts, objects = [], [], {}, {}
        for parity in (0, 1):
            chosen = [i for i in range(len(groups)) if i % 2 == parity]
            if not chosen:
                continue
            table: list[dict[str, Any]] = []
            for i in chosen:
                starts[i], objects[i] = len(table), len(paths)
                table.extend(rows[i])
            key = self.keys.trajectory("solver", 0, "pool-local-0", f"{n}-{parity}")
            written = write_table(self.store, key, pa.Table.from_pylist(table, schema=SCHEMA))
            paths.append(key)
            hashes.append(written.hash)
        return Batched(
            policy="solver",
            n=n,
            paths=paths,
            stores=[""] * len(paths),
            hashes=hashes,
            groups=list(groups),
            objects=[objects[i] for i in range(len(groups))],
            row_starts=[starts[i] for i in range(len(groups))],
            row_counts=[len(rows[i]) for i in range(len(groups))],
            versions=[0] * len(groups),
        )

    def facts(self) -> list[AnyFact]:
        """All facts of all participants, lives in order of their first record."""
        listed = [info.key for info in self.store.list(self.keys.outboxes)]
        records = [decode(self.store.get(key), FactRecord, where=key) for key in listed]
        return [fact for record in records for fact in record.facts]


@pytest.fixture
def make_run(model_folder: Path, tmp_path: Path) -> Callable[..., Run]:
    """A run in ``url`` (a folder by default) with a trainer section."""

    def make(name: str = "run", url: str | None = None, policy: dict[str, Any] | None = None, **trainer: Any) -> Run:
        settings = {"steps": 4, "lr": 1e-3, "checkpoint_every": 2, "batch_timeout_s": 20, "batch_size": 3} | trainer
        config = RunConfig.model_validate(
            {
                "name": name,
                "store": url or (tmp_path / "store").as_uri(),
                "policies": {"solver": {"model": str(model_folder), **(policy or {})}},
                "problems": {"source": "addition", "options": {"count": 200}},
                "trainer": settings,
            }
        )
        store = open_store(config.store)
        problems = load_problems(config.problems, config.seed)
        config = config.model_copy(update={"data_hash": data_hash(problems), "problem_count": len(problems)})
        keys = RunKeys(name)
        write_table(store, keys.problems(config.data_hash), problems_table(problems))
        return Run(store, config, keys)

    return make

"""Trajectory rows a second that one manager takes in on one core, with all rules on, and how fast it starts again.

    python tests/benchmarks/dataflow.py [--rows 1000000] [--history 1000 100000 1000000] [--json]

Each record commits 128 groups of 8 rows in one object. Counted is everything from the outbox bytes to the encoded
decision record: decode, validate, admit, filter (dynamic sampling), form batches, consume, lease again (shuffled), so
also what the trainer says. ``rows_per_s`` is the median over stretches behind each history; ``flat`` is the slowest of
them to the quickest. ``restart_s`` is what a new manager needs for a run of ``--rows`` in a local store: newest
snapshot, and all records behind it. Process time, so other processes do not count; ``decode_rows_per_s`` is the bare
JSON decode of the same bytes in the same run, for comparison with another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from astraflow import records as r
from astraflow.config import Component, RunConfig
from astraflow.dataflow.manager import be_frugal
from astraflow.dataflow.replay import fold_run
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming, step
from storage.keys import RunKeys
from storage.local import LocalStore

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, beside the tests it borrows from

from tests.dataflow.drive import Drive, make_config, make_parts

GROUPS, SIZE = 128, 8
STRETCH = 24  # records of one measurement


def _config() -> RunConfig:
    return make_config(
        group_size=SIZE,
        batch_size=4 * GROUPS,
        steps=10**6,
        problem_count=4096,
        max_staleness=2,
        curator=Component(name="shuffled"),
        filters=[Component(name="zero_advantage")],
        snapshot_every=500,
    )


class Bench:
    """A run at one pool and one trainer; ``store`` keeps its logs if it is given."""

    def __init__(self, store: LocalStore | None = None) -> None:
        self.config, self.keys, self.store = _config(), RunKeys("run"), store
        self.drive = Drive(self.config)
        self.drive.join_trainer()
        self.drive.join_pool(capacity=10**5)
        self.state = RunState(self.config)
        self.seq = 0
        self.sent = dict.fromkeys(("pool-a", "trainer-solver"), 0)
        self.decode_s = self.whole_s = 0.0
        self.rows = 0
        epoch = r.Epoch(n=1, holder="b", data_hash="abc", config_hash="c", code="1")
        self._append({}, {}, self._begin(epoch))
        inbox = {name: record for name, record in self.drive._inbox if record is not None}
        self._take({name: r.encode(record) for name, record in inbox.items()}, beats=dict.fromkeys(inbox, 1))

    def _begin(self, epoch: r.Epoch) -> list[r.AnyDecision]:
        self.state.begin(0.0)
        self.state.apply(epoch)
        self.state.ledger.seq += 1
        return [epoch]

    def _append(self, cursors: dict[str, int], beats: dict[str, int], decisions: list[r.AnyDecision]) -> bytes:
        record = r.DecisionRecord(
            id=str(self.seq), epoch=1, now=self.seq / 1e6, cursors=cursors, observations=beats, decisions=decisions
        )
        data = r.encode(record)
        if self.store is not None:
            self.store.create(self.keys.decision(self.seq), data)
        self.seq += 1
        return data

    def _take(self, said: dict[str, bytes], beats: dict[str, int] | None = None) -> None:
        """One tick of the manager, from stored bytes to decision bytes; what the store does is not counted."""
        for name, data in said.items():
            if self.store is not None:
                self.store.create(self.keys.outbox(name, self.sent[name]), data)
        begun = time.process_time()
        records = {name: r.decode(data, r.FactRecord, where="") for name, data in sorted(said.items())}
        self.decode_s += time.process_time() - begun
        incoming = [Incoming(name, self.sent[name], record) for name, record in records.items()]
        decisions = step(self.state, incoming, beats or {}, self.seq / 1e6)
        cursors = {name: self.sent[name] + 1 for name in records}
        record = r.DecisionRecord(
            id=str(self.seq), epoch=1, now=self.seq / 1e6, cursors=cursors, observations={}, decisions=decisions
        )
        r.encode(record)
        self.whole_s += time.process_time() - begun
        self._append(cursors, beats or {}, decisions)
        self.state.ledger.seq = self.seq - 1
        self.sent |= cursors
        if self.store is not None and self.seq % self.config.dataflow.snapshot_every == 0:
            self.store.create(self.keys.snapshot(self.seq - 1), self.state.snapshot())

    def commit(self) -> None:
        """The pool brings 128 groups, one in sixteen without variance; the trainer does what is batched."""
        held = list(self.state.participants["pool-a"].held)[:GROUPS]
        version = self.state.policies["solver"].newest
        parts = make_parts("pool-a", held, version=version, rewards=[float(i % 2) for i in range(SIZE)])
        rewards = [reward if i // SIZE % 16 else 1.0 for i, reward in enumerate(parts.rewards)]
        fact = r.Committed(
            groups=held, attempts=[1] * GROUPS, objects=[msgspec.structs.replace(parts, rewards=rewards)]
        )
        self._take({"pool-a": self._record("pool-a", fact)})
        self.rows += GROUPS * SIZE
        queue = self.state.policies["solver"]
        if queue.unconsumed > 1:
            n = queue.consumed
            consumed = r.Consumed(policy="solver", batch=n, step=n + 1, incarnation=0, metrics={"step_s": 1.0})
            said = self._record("trainer-solver", self.drive.published("solver", n + 1, n + 1), consumed)
            self._take({"trainer-solver": said})
            self._take({"pool-a": self._record("pool-a", self.drive.applied("solver", n + 1, n + 1))})

    def _record(self, name: str, *facts: r.AnyFact) -> bytes:
        return r.encode(r.FactRecord(id=f"{name}-{self.sent[name]}", participant=name, facts=list(facts)))

    def stretch(self) -> tuple[float, float]:
        """Rows a second of some records, whole and decode alone."""
        before, self.decode_s, self.whole_s = self.rows, 0.0, 0.0
        for _ in range(STRETCH):
            self.commit()
        rows = self.rows - before
        return rows / self.whole_s, rows / self.decode_s


def measure(history: list[int], repeats: int) -> dict[str, object]:
    """Rates behind each history of rows."""
    bench, rates, decodes = Bench(), {}, []
    bench.stretch()
    for rows in sorted(history):
        while bench.rows < rows:
            bench.commit()
        found = [bench.stretch() for _ in range(repeats)]
        rates[str(rows)] = statistics.median(rate for rate, _ in found)
        decodes += [decode for _, decode in found]
    queue = bench.state.policies["solver"]
    assert queue.admitted * SIZE == bench.rows and queue.dropped["zero_advantage"] > 0, "some records had no effect"
    return {
        "rows_per_s": statistics.median(rates.values()),
        "by_history": rates,
        "flat": min(rates.values()) / max(rates.values()),
        "decode_rows_per_s": statistics.median(decodes),
    }


def measure_restart(rows: int) -> dict[str, float]:
    """A run of ``rows`` rows in a local store, and the time until a new manager has its state."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(LocalStore(folder))
        while bench.rows < rows:
            bench.commit()
        begun = time.process_time()
        state = fold_run(LocalStore(folder), bench.keys, bench.config)
        spent_s = time.process_time() - begun
        assert state.snapshot() == bench.state.snapshot(), "the manager came back as another one"
        return {"restart_s": spent_s, "restart_rows": float(bench.rows), "restart_records": float(bench.seq)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", type=int, nargs="+", default=[10**3, 10**5, 10**6])
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    be_frugal()  # as a manager's process does
    figures = {**measure(given.history, given.repeats), **(measure_restart(given.rows) if given.rows else {})}
    if given.json:
        print(json.dumps({"benchmark": "dataflow", **figures}))
        return
    for name, value in figures.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()

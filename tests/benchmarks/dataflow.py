"""Trajectory rows a second that one manager takes in on one core, beside the bare JSON decode of the same run.

    python tests/benchmarks/dataflow.py [--group-size 8] [--records 400] [--json]

Each record commits 64 groups. Counted is everything from the outbox bytes to the encoded decision record: decode,
validate, admit, form batches, lease again, consume. Process time, so other processes do not count; compare the
ratio to the decode, not the rate with another machine's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from astraflow import records as r
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming, step

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, beside the tests it borrows from

from tests.dataflow.drive import Drive, make_config, make_parts

GROUPS_A_RECORD = 64


def _say(state: RunState, name: str, *facts: r.AnyFact) -> Incoming:
    record = r.FactRecord(id=r.new_id(), participant=name, facts=list(facts))
    return Incoming(name, state.participants[name].cursor, record)


def _commit(state: RunState, group_size: int, index: int) -> bytes:
    held = list(state.participants["pool-a"].held)[:GROUPS_A_RECORD]
    version = state.policies["solver"].newest
    rewards = [float(i % 2) for i in range(group_size)]
    parts = make_parts("pool-a", held, version=version, rewards=rewards)
    fact = r.Committed(groups=held, attempts=[1] * len(held), objects=[parts])
    return r.encode(r.FactRecord(id=str(index), participant="pool-a", facts=[fact]))


def _consume(drive: Drive) -> list[list[Incoming]]:
    """The trainer's and the pool's words after a batch."""
    n = drive.state.policies["solver"].consumed
    consumed = r.Consumed(policy="solver", batch=n, step=n + 1, incarnation=0)
    trained = _say(drive.state, "trainer-solver", drive.published("solver", n + 1, n + 1), consumed)
    applied = _say(drive.state, "pool-a", drive.applied("solver", n + 1, n + 1))
    return [[trained], [applied]]


def measure(group_size: int, records: int) -> dict[str, float]:
    """Rows a second of the whole and of the decode alone."""
    drive = Drive(make_config(group_size=group_size, batch_size=8 * GROUPS_A_RECORD, steps=10**6))
    drive.join_trainer()
    drive.join_pool(capacity=10**6)
    drive.step()
    state, decode_s, whole_s = drive.state, 0.0, 0.0
    for index in range(records):
        data = _commit(state, group_size, index)
        begun = time.process_time()
        record = r.decode(data, r.FactRecord, where="")
        decode_s += time.process_time() - begun
        incoming = [Incoming("pool-a", state.participants["pool-a"].cursor, record)]
        decisions = step(state, incoming, {}, 1.0)
        r.encode(r.DecisionRecord(id="x", epoch=1, now=0.0, cursors={}, observations={}, decisions=decisions))
        if state.policies["solver"].unconsumed > 1:
            for inbox in _consume(drive):
                step(state, inbox, {}, 1.0)
        whole_s += time.process_time() - begun
    admitted = state.policies["solver"].admitted
    assert admitted == records * GROUPS_A_RECORD, "some records had no effect: nothing was measured"
    rows = admitted * group_size
    return {
        "group_size": float(group_size),
        "rows_s": rows / whole_s,
        "decode_rows_s": rows / decode_s,
        "whole_to_decode": decode_s / whole_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group-size", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measure(size, given.records) for size in given.group_size]
    if given.json:
        print(json.dumps({"benchmark": "dataflow", "rows": rows}))
        return
    for row in rows:
        print(f"groups of {row['group_size']:.0f}: {row['rows_s']:,.0f} rows/s, decode {row['decode_rows_s']:,.0f}")


if __name__ == "__main__":
    main()

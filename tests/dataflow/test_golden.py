"""The stored bytes of what evaluations and load reports say, and the fields of a snapshot.

Readers of other versions rely on them: a change here is a change of ``PROTOCOL`` or ``SNAPSHOT_FORMAT``.
"""

from __future__ import annotations

import json

import pytest

from astraflow import records as r
from astraflow.dataflow.ledger import SNAPSHOT_FORMAT
from tests.dataflow.drive import Drive, make_config

FACTS = [
    (
        r.Evaluated(
            evaluation="held", item=3, attempt=1, scores=[0.5, 1.0], low={"a": 1}, high={"a": 2}, response_tokens=9
        ),
        b'{"type":"Evaluated","evaluation":"held","item":3,"attempt":1,"scores":[0.5,1.0],"low":{"a":1},"high":{"a":2},'
        b'"response_tokens":9}',
    ),
    (
        r.EvalFailed(item=3, attempt=2, kind="drained"),
        b'{"type":"EvalFailed","item":3,"attempt":2,"kind":"drained","message":""}',
    ),
    (r.LeasesWanted(ahead=3), b'{"type":"LeasesWanted","ahead":3}'),
    (
        r.Wanted(what="pause", region="west", reason="lunch"),
        b'{"type":"Wanted","what":"pause","target":"","reason":"lunch","region":"west"}',
    ),
    (
        r.PoolsWanted(region="west", pools=3, reason="cheap today"),
        b'{"type":"PoolsWanted","region":"west","pools":3,"reason":"cheap today"}',
    ),
]
DECISIONS = [
    (
        r.EvalStarted(evaluation="held", round=1, versions={"a": 4}, reason="version"),
        b'{"type":"EvalStarted","evaluation":"held","round":1,"versions":{"a":4},"reason":"version"}',
    ),
    (
        r.EvalLeased(pool="p", evaluation="held", round=1, items=[3], problems=[0], attempts=[1]),
        b'{"type":"EvalLeased","pool":"p","evaluation":"held","round":1,"items":[3],"problems":[0],"attempts":[1]}',
    ),
    (
        r.EvalExpired(pool="p", items=[3], attempts=[1], reason="lost"),
        b'{"type":"EvalExpired","pool":"p","items":[3],"attempts":[1],"reason":"lost"}',
    ),
    (
        r.EvalReported(
            evaluation="held",
            round=1,
            low={"a": 4},
            high={"a": 5},
            problems=2,
            missing=1,
            figures={"avg@2": 0.5},
            reason="deadline",
        ),
        b'{"type":"EvalReported","evaluation":"held","round":1,"low":{"a":4},"high":{"a":5},"problems":2,"missing":1,'
        b'"figures":{"avg@2":0.5},"reason":"deadline"}',
    ),
    (
        r.LoadReported(policy="a", step=10, figures={"ready": 1.0}, pools={"p": {"rate": 2.0}}),
        b'{"type":"LoadReported","policy":"a","step":10,"figures":{"ready":1.0},"pools":{"p":{"rate":2.0}}}',
    ),
    (
        r.Scaled(pools={"west": 3}, held=["west"], reason="cheap today"),
        b'{"type":"Scaled","pools":{"west":3},"held":["west"],"reason":"cheap today"}',
    ),
    (
        r.Paused(policy="", region="west", reason="lunch"),
        b'{"type":"Paused","policy":"","reason":"lunch","region":"west"}',
    ),
    (r.Resumed(policy="", region="west"), b'{"type":"Resumed","policy":"","region":"west"}'),
]


@pytest.mark.parametrize(("fact", "stored"), FACTS)
def test_facts(fact: r.AnyFact, stored: bytes) -> None:
    whole = b'{"id":"i","participant":"p","facts":[' + stored + b"]}"
    assert r.encode(r.FactRecord(id="i", participant="p", facts=[fact])) == whole
    assert r.decode(whole, r.FactRecord, where="").facts == [fact]


@pytest.mark.parametrize(("decision", "stored"), DECISIONS)
def test_decisions(decision: r.AnyDecision, stored: bytes) -> None:
    whole = b'{"id":"i","epoch":1,"now":0.5,"cursors":{},"observations":{},"decisions":[' + stored + b"]}"
    record = r.DecisionRecord(id="i", epoch=1, now=0.5, cursors={}, observations={}, decisions=[decision])
    assert r.encode(record) == whole
    assert r.decode(whole, r.DecisionRecord, where="") == record


def test_a_load_report_of_older_code_is_read() -> None:
    old = b'{"id":"i","epoch":1,"now":0.5,"cursors":{},"observations":{},"decisions":['
    old += b'{"type":"LoadReported","policy":"a","step":10,"figures":{}}]}'
    assert r.decode(old, r.DecisionRecord, where="").decisions == [r.LoadReported(policy="a", step=10, figures={})]


def test_wishes_and_pauses_of_before_there_were_regions_are_read() -> None:
    fact = b'{"id":"i","participant":"p","facts":[{"type":"Wanted","what":"pause","target":"a","reason":"r"}]}'
    assert r.decode(fact, r.FactRecord, where="").facts == [r.Wanted(what="pause", target="a", reason="r")]
    old = b'{"id":"i","epoch":1,"now":0.5,"cursors":{},"observations":{},"decisions":['
    old += b'{"type":"Paused","policy":"a","reason":"r"},{"type":"Resumed","policy":"a"}]}'
    decisions = [r.Paused(policy="a", reason="r"), r.Resumed(policy="a")]
    assert r.decode(old, r.DecisionRecord, where="").decisions == decisions


def test_the_fields_of_a_snapshot() -> None:
    drive = Drive(make_config())
    drive.ready()
    written = json.loads(drive.state.snapshot())
    assert (SNAPSHOT_FORMAT, written["format"]) == (3, 3)
    assert list(written) == [
        "format", "seq", "epoch", "now", "config_hash", "code", "data_hash", "policies", "participants", "leases",
        "evaluations", "paused", "drain_reason", "draining_since", "stopped", "curator", "replays",
        "scaling",
    ]  # fmt: skip
    assert list(written["participants"]["pool-a"]) == [
        "role", "name", "region", "policies", "capacity", "cursor", "beats", "heard_at", "applied", "held", "evals",
        "group_s", "admitted", "rejects", "failures", "quarantined", "lost", "draining", "left", "ahead", "share",
    ]  # fmt: skip
    assert list(written["scaling"]) == ["wanted", "most", "held", "changes", "changed_at", "advised", "paused"]
    assert list(written["evaluations"]) == ["next_item", "rounds", "begun", "newest"]

"""The runs that a store holds, for a person who looks for one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from astraflow.recipe import load_run_config
from astraflow.records import DecisionRecord, DrainRequested, Stopped, decode
from astraflow.weights.manifest import decode_manifest
from storage.errors import AstraFlowError
from storage.filesystem import open_filesystem
from storage.keys import NAME, RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run. ``steps`` are those of each policy's newest version; ``created_s`` is the store's clock, for the eye."""

    run: str
    state: str  # created, running, draining, stopped, unreadable
    reason: str = ""
    steps: dict[str, int] = field(default_factory=dict)
    created_s: float | None = None


def runs(store: ObjectStore) -> list[RunEntry]:
    """All runs, the newest last; where the store keeps no times, by name.

    Costs a few dozen small requests a run: tails are found by galloping, logs are not read.
    """
    entries = [_entry(store, run) for run in _names(store)]
    return sorted(entries, key=lambda entry: (entry.created_s or 0.0, entry.run))


def newest_run(store: ObjectStore) -> str | None:
    """The name of the newest run, None if there is none: what ``runs`` ends with, without a look into the runs."""
    names = list(_names(store))
    if len(names) < 2:
        return names[0] if names else None
    return max(names, key=lambda run: (_created_s(store, RunKeys(run)) or 0.0, run))


def _names(store: ObjectStore) -> Iterator[str]:
    """Folders with a config, found by leaping from one folder's first key to the next folder."""
    after: str | None = None
    while (first := next(iter(store.list("", after=after, limit=1)), None)) is not None:
        name, slash, _ = first.key.partition("/")
        if (
            slash
            and NAME.match(name)
            and any(info.key == RunKeys(name).config for info in store.list(RunKeys(name).config, limit=1))
        ):
            yield name
        after = f"{name}0" if slash else first.key  # '0' follows '/': behind every key of the folder


def _entry(store: ObjectStore, run: str) -> RunEntry:
    keys = RunKeys(run)
    created_s = _created_s(store, keys)
    try:
        policies = load_run_config(store, run).trained
        state, reason = _state(store, keys)
        return RunEntry(run, state, reason, {policy: _steps(store, keys, policy) for policy in policies}, created_s)
    except AstraFlowError as error:
        return RunEntry(run, "unreadable", str(error), created_s=created_s)


def _state(store: ObjectStore, keys: RunKeys) -> tuple[str, str]:
    """The last decision record tells: ``Stopped`` is the last one of a run."""
    log = NumberedLog(store, keys.decision)
    newest = next(iter(store.list(keys.snapshots, limit=1)), None)
    tail = log.tail(keys.snapshot_seq(newest.key) + 1 if newest else 0)
    if tail == 0:
        return "created", ""
    data = log.read(tail - 1)
    last = decode(data or b"", DecisionRecord, where=log.key(tail - 1))
    for decision in last.decisions:
        if isinstance(decision, Stopped):
            return "stopped", decision.reason
        if isinstance(decision, DrainRequested) and not decision.participants:
            return "draining", decision.reason
    return "running", ""


def _steps(store: ObjectStore, keys: RunKeys, policy: str) -> int:
    """Steps of the newest version. Its number is found as a log's tail is: versions are gapless too."""
    versions = NumberedLog(store, lambda version: keys.manifest(policy, version))
    newest = versions.tail() - 1
    data = versions.read(newest) if newest >= 0 else None
    if data is None:
        return 0
    return decode_manifest(data, where=versions.key(newest), policy=policy, version=newest).step


def _created_s(store: ObjectStore, keys: RunKeys) -> float | None:
    """When the store says the config was written."""
    filesystem, root = open_filesystem(store.url)
    with contextlib.suppress(OSError, NotImplementedError):
        return float(filesystem.modified(f"{root}/{keys.config}").timestamp())
    return None

"""One process a participant, without Prefect: manager, pool and trainer of a run, with what they did and when.

    python tests/benchmarks/run_processes.py ROLE STORE_URL RUN STAMPS.json

``start_run`` starts them all; a trainer of another policy than ``solver`` has the role ``trainer.POLICY``, a pool of
another name than ``local`` ``pool.NAME``, a region's mirror ``mirror.REGION``. Stamps are
seconds on the machine's monotonic clock, so they compare across processes. They are taken at the edges that others
can see: when a create of a record returned, a play began, weights were applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from astraflow import records as r
from astraflow.component import use_code
from astraflow.recipe import load_run_config
from storage import open_store
from storage.keys import RunKeys
from storage.store import Created, ObjectStore

NOTES = "notes.jsonl"
NOTE_DIGESTS = "ASTRAFLOW_NOTE_DIGESTS"
"""With this variable a trainer notes the digest of its parameters after every step."""
ROLES = ("manager", "trainer", "pool")
ROOT = Path(__file__).parents[2]


class Stamps:
    """(what, key) -> when, first time only."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def add(self, what: str, key: object) -> None:
        self.times.setdefault(f"{what}/{key}", time.monotonic())


class Stamped:
    """A store that notes when records were there."""

    def __init__(self, inner: ObjectStore, keys: RunKeys, stamps: Stamps) -> None:
        self._inner, self._keys, self._stamps = inner, keys, stamps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, data: bytes) -> Created:
        made = self._inner.create(key, data)
        self._note(key, data)
        return made

    def _note(self, key: str, data: bytes) -> None:
        if key.startswith(f"{self._keys.root}decisions/"):
            for decision in r.decode(data, r.DecisionRecord, where=key).decisions:
                self._note_decision(decision)
        elif "/outbox/" in key:
            for fact in r.decode(data, r.FactRecord, where=key).facts:
                self._note_fact(fact)
        elif key.endswith("manifest.json"):
            self._stamps.add("published", key.split("/")[-2].lstrip("0") or "0")

    def _note_decision(self, decision: r.AnyDecision) -> None:
        if isinstance(decision, r.Leased):
            for group in decision.groups:
                self._stamps.add("leased", group)
        elif isinstance(decision, r.Batched):
            self._stamps.add("batched", f"{decision.n}:{','.join(map(str, decision.groups))}")

    def _note_fact(self, fact: r.AnyFact) -> None:
        if isinstance(fact, r.Committed):
            for group in fact.groups:
                self._stamps.add("committed", group)
        elif isinstance(fact, r.Consumed):
            self._stamps.add("consumed", fact.batch)
            for name in ("wait_s", "step_s", "publish_s"):
                self._stamps.times[f"{name}/{fact.batch}"] = fact.metrics.get(name, 0.0)


def be(role: str, url: str, run: str, stamps: Stamps) -> None:
    """Live one participant's life."""
    keys = RunKeys(run)
    store: Any = Stamped(open_store(url), keys, stamps)
    config = load_run_config(store, run)
    use_code(config.code)
    kind, _, name = role.partition(".")
    if kind == "manager":
        from astraflow.dataflow.manager import run_manager

        run_manager(store, config, holder="benchmark")
    elif kind == "mirror":
        from astraflow.weights.mirror import run_mirror

        run_mirror(store, config, name)
    elif kind == "trainer":
        if os.environ.get(NOTE_DIGESTS):
            _note_digests()
        from astraflow.trainer.loop import run_trainer

        run_trainer(store, config, name or "solver")
    else:
        _stamp_pool(stamps)
        from astraflow.raas.pool import run_pool

        asyncio.run(run_pool(store, config, name or "local"))


def _note_digests() -> None:
    """Write the parameters' digest and the time after every step into ``NOTES``; before anything imports the step."""
    from parity_parts import digest

    from astraflow.trainer import step

    train = step.train_batch

    def noted(learner: Any, batch: Any) -> Any:
        result = train(learner, batch)
        with Path(NOTES).open("a") as file:
            file.write(json.dumps([digest(learner.model), time.monotonic()]) + "\n")
        return result

    step.train_batch = noted


def _stamp_pool(stamps: Stamps) -> None:
    """Note when a play begins and when weights sample: there is no record of either."""
    from astraflow.raas import player, serving

    play, advance = player.play_group, serving.Served.advance

    async def stamped_play(lease: Any, *rest: Any) -> Any:
        stamps.add("started", lease.group)
        return await play(lease, *rest)

    async def stamped_advance(self: Any, version: int) -> bool:
        done = await advance(self, version)
        if done:
            stamps.add("applied", self.version)
        return done

    player.play_group = stamped_play
    serving.Served.advance = stamped_advance  # type: ignore[method-assign]


Place = Callable[[str], tuple[Sequence[str], dict[str, str]]]
"""What stands before a role's command, and its environment."""


@contextlib.contextmanager
def start_run(
    url: str,
    run: str,
    folder: Path,
    env: dict[str, str] | None = None,
    *,
    roles: Sequence[str] = ROLES,
    place: Place = lambda _: ((), {}),
    script: Path = Path(__file__),
    timeout_s: float = 900.0,
) -> Iterator[dict[str, Path]]:
    """All processes of a run that was created; ends those that are left. Gives where their stamps will lie."""
    files = {role: folder / f"{role}.json" for role in roles}
    children = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
    for role in roles:
        before, own = place(role)
        command = [*before, sys.executable, str(script), role, url, run, str(files[role])]
        with (folder / f"{role}.log").open("w") as log:
            children.append(
                subprocess.Popen(command, cwd=folder, env=environment | own, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        yield files
        wait_for(dict(zip(roles, children, strict=True)), folder, timeout_s)
    finally:
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait(20)


def wait_for(children: dict[str, subprocess.Popen[bytes]], folder: Path, timeout_s: float = 900.0) -> None:
    """Until all ended well. Raises ``RuntimeError`` with the end of a log."""
    deadline = time.monotonic() + timeout_s
    while any(child.poll() is None for child in children.values()):
        for role, child in children.items():
            if child.poll() not in (None, 0) or time.monotonic() > deadline:
                raise RuntimeError(f"{role}: {(folder / f'{role}.log').read_text()[-3000:]}")
        time.sleep(0.1)


def read_stamps(files: dict[str, Path]) -> dict[str, dict[str, float]]:
    """All stamps by what they are of."""
    found: dict[str, dict[str, float]] = {}
    for file in files.values():
        for key, at in json.loads(file.read_text()).items():
            what, _, name = key.partition("/")
            found.setdefault(what, {})[name] = at
    return found


def main(stamps: Stamps) -> None:
    """Live the life that the arguments name, and leave its stamps."""
    try:
        be(*sys.argv[1:4], stamps)  # type: ignore[misc]
    finally:
        Path(sys.argv[4]).write_text(json.dumps(stamps.times))


if __name__ == "__main__":
    main(Stamps())

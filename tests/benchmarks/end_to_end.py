"""Trajectories a second from a pool's memory to a trainer's tensors: Parquet, store, manager, batch, read, check, pack.

    python tests/benchmarks/end_to_end.py [--batches 60] [--places local s3] [--json]

Three processes, as in a run: a pool that has its episodes played already (512 + 128 tokens, Zipf ids, random log-probs,
groups of 8) and commits 64 groups an object; the real manager; a trainer that reads, checks and packs every batch into
tensors and does nothing with them. ``parquet`` is the bound in the same run: one process that only writes the same
tables and one that only reads them back, at the same time, with the same settings, no rows built, nothing checked.
Reported: ``e2e_local_per_s``, ``e2e_s3_per_s``, ``e2e_vs_parquet`` (local), and ``cpu_us``, each process's CPU time a
trajectory: on a machine that does other things as well, only that says what the code costs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from astraflow import records as r
from astraflow.config import Dataflow, Policy, Pool, Problems, RunConfig, Sampling, Trainer
from astraflow.pace import Pace
from astraflow.participant import Beat, DecisionsReader, Outbox
from astraflow.raas.group import PlayedGroup
from astraflow.raas.leases import Lease, Leases
from astraflow.raas.pool import GC_THRESHOLDS
from astraflow.raas.rows import Origin, bundle, describe, to_table
from astraflow.trajectory import Trajectory
from infra.s3_server import s3_server
from storage import open_store
from storage.errors import NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore
from storage.tables import read_table, write_table

GROUPS, GROUP, PROMPT, RESPONSE, VOCABULARY = 64, 8, 512, 128, 32_000
BANK, WARM, AHEAD, UPLOADS = 256, 6, 12, 4
ROOT = Path(__file__).parents[2]
POOL, TRAINER = "pool-local-00000001", "trainer-solver-00000001"


def config_of(batches: int) -> RunConfig:
    """All groups are wanted at once: lag bounds nothing here."""
    return RunConfig(
        name="e2e",
        policies={"solver": Policy(model="none", sampling=Sampling(max_tokens=RESPONSE))},
        problems=Problems(source="none"),
        problem_count=1000,
        data_hash="none",
        pools={"local": Pool(capacity=GROUPS * AHEAD)},
        trainer=Trainer(steps=batches, batch_size=GROUPS),
        dataflow=Dataflow(group_size=GROUP, max_staleness=batches, prefetch=min(batches, AHEAD)),
    )


def zipf(rng: random.Random, weights: list[float], count: int) -> list[int]:
    """Token ids, few of them often."""
    return rng.choices(range(VOCABULARY), cum_weights=weights, k=count)


def bank() -> list[list[Trajectory]]:
    """Played groups without a number: the prompt of a group is one."""
    rng = random.Random(0)
    weights, total = [], 0.0
    for rank in range(VOCABULARY):
        total += 1.0 / (rank + 1.5)
        weights.append(total)
    groups = []
    for _ in range(BANK):
        prompt = zipf(rng, weights, PROMPT)
        groups.append(
            [
                Trajectory(
                    policy="solver",
                    role="solver",
                    slot=0,
                    prompt_ids=prompt,
                    response_ids=zipf(rng, weights, RESPONSE),
                    logprobs=[-rng.expovariate(1.0) for _ in range(RESPONSE)],
                    loss_mask=[True] * RESPONSE,
                    versions=[0] * RESPONSE,
                    reward=float(rng.random() < 0.5),
                )
                for _ in range(GROUP)
            ]
        )
    return groups


def played(groups: list[list[Trajectory]], leases: list[Lease]) -> list[PlayedGroup]:
    """Groups under the numbers that were leased."""
    return [PlayedGroup(lease, f"p{lease.problem}", [[t] for t in groups[lease.group % BANK]]) for lease in leases]


ORIGIN = Origin("e2e", POOL, "local", "none")


# --- the pool and the trainer ---------------------------------------------------------------------


def be_pool(store: ObjectStore, config: RunConfig, begin: Callable[[], None]) -> None:
    """Commit whatever is leased, 64 groups an object, a few uploads at once."""
    keys, groups = RunKeys(config.name), bank()
    gc.set_threshold(*GC_THRESHOLDS)  # as a pool's process does
    outbox, leases, reader = Outbox(store, keys, POOL), Leases(POOL), DecisionsReader(store, keys)
    joined = r.PoolJoined(
        pool="local",
        region="local",
        policies=["solver"],
        capacity=config.pools["local"].capacity,
        engine="none",
        data_hash="none",
    )
    applied = r.Applied(policy="solver", version=0, step=0, digest=_manifest(store, keys)["digest"])
    begin()

    def upload(some: list[Lease]) -> tuple[list[Lease], r.PartsObject]:
        (item,) = bundle(played(groups, some))
        path = keys.trajectory("solver", 0, POOL, uuid.uuid4().hex[:12])
        return some, describe(item, path, write_table(store, path, to_table(item.rows, ORIGIN)))

    status = r.Status(participant=POOL, role="pool", state="playing")
    threads = 1 if store.url.startswith("file:") else UPLOADS
    with Beat(store, keys, status, every_s=2.0), ThreadPoolExecutor(threads) as pool:
        outbox.append([joined, applied])
        flying: list[Any] = []
        while leases.stopped is None and leases.drain is None:
            for _, record in reader.poll():
                leases.fold(record.decisions)
            while len(leases.waiting) >= GROUPS and len(flying) < threads + 1:
                flying.append(pool.submit(upload, [leases.next() for _ in range(GROUPS)]))
            if not flying:
                time.sleep(0.002)
                continue
            some, thing = flying.pop(0).result()
            groups_, attempts = [lease.group for lease in some], [lease.attempt for lease in some]
            outbox.append([r.Committed(groups=groups_, attempts=attempts, objects=[thing])])
            for lease in some:
                leases.done(lease)
        outbox.append([r.Left()])


def be_trainer(store: ObjectStore, config: RunConfig, begin: Callable[[], None]) -> list[float]:
    """Read, check and pack every batch; the time after each."""
    import torch

    from astraflow.trainer.feed import BatchFeed
    from astraflow.trainer.loader import Loader
    from astraflow.trainer.reader import PartReader
    from astraflow.trainer.versions import VersionSteps

    torch.set_num_threads(1)
    keys, times = RunKeys(config.name), []
    outbox = Outbox(store, keys, TRAINER)
    reader = PartReader(store, VersionSteps(store, keys, "solver"), vocabulary=VOCABULARY, context=4096)
    feed = BatchFeed(store, keys, "solver", TRAINER, cursor=0, first=0)
    manifest = _manifest(store, keys)
    published = r.Published(policy="solver", version=0, step=0, incarnation=0, digest=manifest["digest"])
    status = r.Status(participant=TRAINER, role="trainer", state="training")
    begin()
    ahead = min(config.dataflow.prefetch, config.dataflow.max_staleness)
    with Beat(store, keys, status, every_s=2.0), Loader(reader, feed, Pace(store.url), most=ahead) as loader:
        outbox.append([r.TrainerJoined(policy="solver", incarnation=0), published])
        for n in range(config.trainer.steps):
            while (batch := feed.get(n)) is None:
                feed.poll()
                time.sleep(0.001)
            loaded = loader.load(batch)
            with loader.ahead():
                tensors = pack(loaded)
            assert not loaded.skipped and sum(len(t.rows) for t in tensors) == GROUPS * GROUP
            times.append(time.monotonic())
            outbox.append([r.Consumed(policy="solver", batch=n, step=n + 1, incarnation=0)])
        outbox.append([r.Ended(policy="solver"), r.Left()])
    return times


def pack(loaded: Any) -> list[Any]:
    """The batch as the tensors that a step begins with."""
    import torch

    from astraflow.trainer.batch import micro_batches

    sequences = [sequence for part in loaded.parts for sequence in part.sequences]
    weights = torch.full((len(sequences),), 1.0 / len(sequences))
    advantages = [sequence.reward - 0.5 for sequence in sequences]
    return micro_batches(sequences, advantages, weights, pad_id=0, budget_tokens=16384)


def be_manager(store: ObjectStore, config: RunConfig, begin: Callable[[], None]) -> None:
    """The real one."""
    from astraflow.dataflow.manager import run_manager

    begin()
    run_manager(store, config, holder="benchmark")


def _manifest(store: ObjectStore, keys: RunKeys) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.get(keys.manifest("solver", 0)))
    return found


# --- the bound ------------------------------------------------------------------------------------


def be_writer(store: ObjectStore, config: RunConfig, begin: Callable[[], None]) -> None:
    """Write tables that are there already."""
    groups = bank()
    tables = []
    for first in range(0, BANK, GROUPS):
        (item,) = bundle(played(groups, [Lease(g, 0, 1) for g in range(first, first + GROUPS)]))
        tables.append(to_table(item.rows, ORIGIN))
    threads = 1 if store.url.startswith("file:") else UPLOADS
    begin()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(
            lambda n: write_table(store, f"bound/{n:06d}.parquet", tables[n % len(tables)]), range(config.trainer.steps)
        ):
            pass


def be_reader(store: ObjectStore, config: RunConfig, begin: Callable[[], None]) -> list[float]:
    """Read them back as they come."""
    from astraflow.trainer.columns import COLUMNS

    begin()
    times = []
    for n in range(config.trainer.steps):
        while True:
            try:
                table = read_table(store, f"bound/{n:06d}.parquet", columns=COLUMNS)
                break
            except NotFound:
                time.sleep(0.001)
        assert table.num_rows == GROUPS * GROUP
        times.append(time.monotonic())
    return times


LIVES: dict[str, Callable[..., Any]] = {
    "pool": be_pool,
    "trainer": be_trainer,
    "manager": be_manager,
    "writer": be_writer,
    "reader": be_reader,
}


def be(role: str, url: str, batches: str, folder: str) -> None:
    """One process's life: it says when it is ready, begins with the others, and writes what it timed."""
    place = Path(folder)

    def begin() -> None:
        (place / f"{role}.ready").touch()
        while not (place / "go").exists():
            time.sleep(0.001)

    store, config = open_store(url), config_of(int(batches))
    cpu: list[float] = []

    def begin_counting() -> None:
        begin()
        cpu.append(time.process_time())

    times = LIVES[role](store, config, begin_counting)
    used_us = (time.process_time() - cpu[0]) * 1e6 / (config.trainer.steps * GROUPS * GROUP)
    (place / f"{role}.json").write_text(json.dumps({"times": times, "cpu_us": round(used_us, 2)}))


def together(roles: list[str], url: str, batches: int, env: dict[str, str]) -> tuple[float, dict[str, float]]:
    """Let processes live together: the last one's trajectories a second, and every one's CPU µs a trajectory."""
    with tempfile.TemporaryDirectory(prefix="astraflow-e2e-") as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env}
        children = []
        for role in roles:
            command = [sys.executable, str(Path(__file__)), "--be", role, url, str(batches), name]
            children.append(subprocess.Popen(command, env=environment, cwd=folder))
        try:
            while not all((folder / f"{role}.ready").exists() for role in roles):
                _check(children)
                time.sleep(0.01)
            (folder / "go").touch()
            while any(child.poll() is None for child in children):
                _check(children)
                time.sleep(0.02)
            _check(children)
            said = {role: json.loads((folder / f"{role}.json").read_text()) for role in roles}
            return per_s(said[roles[-1]]["times"]), {role: found["cpu_us"] for role, found in said.items()}
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()


def _check(children: list[subprocess.Popen[bytes]]) -> None:
    if any(child.poll() not in (None, 0) for child in children):
        raise RuntimeError("a process of the benchmark failed: see its traceback above")


def per_s(times: list[float]) -> float:
    """Trajectories a second, the first batches left out."""
    return (len(times) - WARM) * GROUPS * GROUP / (times[-1] - times[WARM - 1])


def measure(place: str, batches: int, repeats: int, url: str, env: dict[str, str]) -> dict[str, Any]:
    """End to end and bound, alternating."""
    e2e, bound, cpu = [], [], []
    for number in range(repeats):
        here = f"{url}/{place}-{number}"
        store = open_store(here)
        _publish(store)
        rate, costs = together(["writer", "reader"], here, batches, env)
        bound.append(rate)
        rate, more = together(["manager", "pool", "trainer"], here, batches, env)
        e2e.append(rate)
        cpu.append(costs | more)
    return {
        "e2e": statistics.median(e2e),
        "parquet": statistics.median(bound),
        "cpu_us": {role: statistics.median(found[role] for found in cpu) for role in cpu[0]},
        "all": {"e2e": e2e, "parquet": bound},
    }


def _publish(store: ObjectStore) -> None:
    """Version 0 of something."""
    import torch

    from astraflow.weights.publisher import Publisher

    publisher = Publisher(store, RunKeys("e2e"), "solver", anchor_every=64)
    publisher.publish({"w": torch.zeros(8, dtype=torch.bfloat16)}, step=0, incarnation=0, batch=-1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--places", nargs="+", choices=["local", "s3"], default=["local", "s3"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be:
        be(*given.be)
        return
    found: dict[str, Any] = {"benchmark": "end_to_end"}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="astraflow-e2e-")))
        if "local" in given.places:
            local = measure("local", given.batches, given.repeats, str(folder / "store"), {})
            found |= {"e2e_local_per_s": local["e2e"], "parquet_local_per_s": local["parquet"]}
            found |= {"e2e_vs_parquet": local["e2e"] / local["parquet"], "local": local["all"]}
            found |= {"cpu_us": local["cpu_us"]}
        if "s3" in given.places:
            server = stack.enter_context(s3_server(folder / "s3"))
            os.environ.update(server.environment)
            s3 = measure("s3", given.batches, given.repeats, server.create_bucket("e2e"), server.environment)
            found |= {"e2e_s3_per_s": s3["e2e"], "parquet_s3_per_s": s3["parquet"], "s3": s3["all"]}
    found |= {"batches": given.batches, "rows_an_object": GROUPS * GROUP, "tokens": [PROMPT, RESPONSE]}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

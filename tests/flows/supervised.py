"""A run with one supervisor over a fake launcher and a memory store, and hands to write what participants would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import Outbox
from astraflow.records import FactRecord, Status, Wanted, decode, encode, new_id
from astraflow.scale_view import ScaleView
from flows.children import ChildSpec, children_of
from flows.launcher import ChildRun
from flows.supervisor import Supervisor
from storage.errors import ServiceError
from storage.keys import RunKeys
from storage.memory import MemoryStore

_numbers = count()


class FakeLauncher:
    """Flow runs as a dictionary that a test edits."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[str, ChildRun]] = {}
        self.cancelled: list[str] = []
        self.deployment = self.work_pool = ""
        self.faults: list[str] = []  # what the next calls are to fail at: «start», or «answer» once it was done

    def start(self, spec: ChildSpec, life: int) -> ChildRun:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "start":
            raise ServiceError("away", kind="unreachable")
        known = [run for key, run in self.runs.values() if key == spec.key and run.life == life]
        run = known[0] if known else self._new(spec, life)
        if fault == "answer":
            raise ServiceError("away", kind="unreachable")
        return run

    def _new(self, spec: ChildSpec, life: int) -> ChildRun:
        run = ChildRun(
            f"0000-{len(self.runs):08d}", life, "SCHEDULED", deployment=self.deployment, work_pool=self.work_pool
        )
        self.runs[run.id] = (spec.key, run)
        return run

    def find(self, spec: ChildSpec) -> list[ChildRun]:
        return sorted((run for key, run in self.runs.values() if key == spec.key), key=lambda run: -run.life)

    def states(self, ids: Sequence[str]) -> dict[str, ChildRun]:
        return {id: self.runs[id][1] for id in ids}

    def cancel(self, id: str) -> None:
        self.cancelled.append(id)

    def newest(self, key: str) -> ChildRun:
        return max((run for own, run in self.runs.values() if own == key), key=lambda run: run.life)

    def set(self, key: str, state: str, message: str = "") -> None:
        run = self.newest(key)
        self.runs[run.id] = (key, replace(run, state=state, message=message))


class World:
    """A run with one supervisor, a clock that the test moves, and hands to write what participants would."""

    def __init__(
        self,
        pools: Sequence[str] = ("local",),
        policies: dict[str, Any] | None = None,
        regions: dict[str, Any] | None = None,
    ) -> None:
        self.config = RunConfig.model_validate(
            {
                "name": f"run-{next(_numbers)}",
                "store": "memory://supervisor",
                "policies": policies or {"solver": {"model": "tiny-qwen3"}},
                "problems": {"source": "addition"},
                "pools": {name: {} for name in pools},
                "regions": regions or {},
                "dataflow": {"silence_s": 60},
            }
        )
        self.store, self.keys = MemoryStore("memory://supervisor"), RunKeys(self.config.name)
        self.launcher, self.now, self.beats = FakeLauncher(), 0.0, count(1)
        self.here: set[int] = set()  # pids that run on this machine
        self.supervisor = self.new_supervisor("experiment-1")

    def new_supervisor(self, participant: str) -> Supervisor:
        follower = RunFollower(self.store, self.config)
        follower.poll()
        return Supervisor(
            config=self.config,
            launcher=self.launcher,
            follower=follower,
            scale_view=ScaleView(self.store, self.config),
            outbox=Outbox(self.store, self.keys, participant),
            log=lambda text: None,
            clock=lambda: self.now,
            is_here=self.here.__contains__,
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.supervisor.follower.poll()
        self.supervisor.tick()

    def beat(self, key: str) -> str:
        """The newest flow run of a child runs and beats; its participant's name."""
        run = self.launcher.newest(key)
        if run.state == "SCHEDULED":
            self.launcher.set(key, "RUNNING")
        role = key.partition("-")[0]
        name = "manager" if role == "manager" else f"{key}-{run.id[-8:]}"
        pid = 1000 + int(run.id[-8:])
        status = Status(participant=name, role=role, state="running", beat=next(self.beats), pid=pid)
        self.store.put(self.keys.status(name), encode(status))
        return name

    def beat_all(self) -> None:
        for spec in children_of(self.config):
            self.beat(spec.key)

    def say(self, participant: str, seq: int, *facts: object) -> None:
        record = FactRecord(id=new_id(), participant=participant, facts=list(facts))  # type: ignore[arg-type]
        self.store.create(self.keys.outbox(participant, seq), encode(record))

    def wishes(self, participant: str = "experiment-1") -> list[Wanted]:
        objects = self.store.list(f"{self.keys.outboxes}{participant}/")
        records = [decode(self.store.get(info.key), FactRecord, where=info.key) for info in objects]
        return [fact for record in records for fact in record.facts if isinstance(fact, Wanted)]

    def lives(self, key: str) -> int:
        return self.launcher.newest(key).life


def begun(pools: Sequence[str] = ("local",), policies: dict[str, Any] | None = None) -> World:
    """A run whose children all beat."""
    world = World(pools, policies)
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    return world

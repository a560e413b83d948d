"""Every key of a run, built and parsed in this one place.

A run's root is ``{run}/`` under the store's root. Log numbers are zero-padded so that a LIST is in
order; the version in a trajectory's path is not, because hive readers take it as an integer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
_SNAPSHOT_TOP = 10**10
_MERGE = re.compile(r"/merged/(?P<version>\d{8})-(?P<base>\d{8})\.json$")
_TRAJECTORY = re.compile(r"^trajectories/policy=(?P<policy>[^/]+)/version=(?P<version>\d+)/(?P<file>[^/]+)\.parquet$")


@dataclass(frozen=True, slots=True)
class TrajectoryPath:
    """A parsed trajectory key: its hive partition and the file's stem (``{participant}-{uuid}``)."""

    policy: str
    version: int
    stem: str


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Keys of one run. ``run`` is the run's name and its folder in the store."""

    run: str

    @property
    def root(self) -> str:
        return f"{self.run}/"

    @property
    def config(self) -> str:
        return f"{self.run}/run.toml"

    def decision(self, seq: int) -> str:
        return f"{self.run}/decisions/{seq:010d}.json"

    @property
    def snapshots(self) -> str:
        return f"{self.run}/snapshots/"

    def snapshot(self, seq: int) -> str:
        """The fold up to and with decision ``seq``; newer snapshots sort first."""
        return f"{self.run}/snapshots/{_SNAPSHOT_TOP - seq:011d}.json"

    def snapshot_seq(self, key: str) -> int:
        return _SNAPSHOT_TOP - int(key.rsplit("/", 1)[1].removesuffix(".json"))

    @property
    def outboxes(self) -> str:
        return f"{self.run}/outbox/"

    def outbox(self, participant: str, seq: int) -> str:
        return f"{self.run}/outbox/{participant}/{seq:010d}.json"

    @property
    def statuses(self) -> str:
        return f"{self.run}/status/"

    def status(self, participant: str) -> str:
        return f"{self.run}/status/{participant}.json"

    def status_participant(self, key: str) -> str:
        return key.rsplit("/", 1)[1].removesuffix(".json")

    def problems(self, data_hash: str) -> str:
        return f"{self.run}/problems/{data_hash}.parquet"

    @property
    def trajectories(self) -> str:
        return f"{self.run}/trajectories/"

    def trajectory(self, policy: str, version: int, participant: str, unique: str) -> str:
        """A Parquet object of whole parts of one policy whose oldest version is ``version``."""
        return f"{self.run}/trajectories/policy={policy}/version={version}/{participant}-{unique}.parquet"

    def parse_trajectory(self, key: str) -> TrajectoryPath | None:
        """The parts of a trajectory key of this run, or None if it is not one."""
        if not key.startswith(self.root):
            return None
        match = _TRAJECTORY.match(key[len(self.root) :])
        if match is None:
            return None
        return TrajectoryPath(match["policy"], int(match["version"]), match["file"])

    @property
    def compacts(self) -> str:
        return f"{self.run}/compact/"

    def compact_entry(self, seq: int) -> str:
        """The log of what was copied together."""
        return f"{self.run}/compact/log/{seq:06d}.json"

    def compacted(self, policy: str, version: int, unique: str) -> str:
        """One Parquet object with the rows of many trajectory objects of a policy and version."""
        return f"{self.run}/compact/policy={policy}/version={version}/{unique}.parquet"

    def is_compacted(self, key: str) -> bool:
        return key.startswith(self.compacts) and key.endswith(".parquet")

    def steps(self, policy: str) -> str:
        return f"{self.run}/steps/policy={policy}/"

    def step(self, policy: str, step: int) -> str:
        return f"{self.run}/steps/policy={policy}/{step:08d}.parquet"

    def weights(self, policy: str) -> str:
        return f"{self.run}/weights/{policy}/"

    def version(self, policy: str, version: int) -> str:
        """The folder of one version's blobs."""
        return f"{self.run}/weights/{policy}/{version:08d}/"

    def manifest(self, policy: str, version: int) -> str:
        return f"{self.run}/weights/{policy}/{version:08d}/manifest.json"

    def merged(self, policy: str) -> str:
        """The folder of a policy's merged deltas: blobs and records."""
        return f"{self.run}/weights/{policy}/merged/"

    def merge(self, policy: str, base: int, version: int) -> str:
        """The record of the merged delta from ``base`` to ``version``; in a LIST by the version it ends at."""
        return f"{self.run}/weights/{policy}/merged/{version:08d}-{base:08d}.json"

    def merge_span(self, key: str) -> tuple[int, int] | None:
        """(base, version) of a merge record's key, or None for another key."""
        match = _MERGE.search(key)
        return (int(match["base"]), int(match["version"])) if match else None

    def model_files(self, policy: str) -> str:
        """The Hugging Face files beside the weights: config, tokenizer, chat template."""
        return f"{self.run}/models/{policy}/"

    def checkpoints(self, policy: str) -> str:
        return f"{self.run}/checkpoints/{policy}/"

    def checkpoint(self, policy: str, incarnation: int, step: int) -> str:
        return f"{self.run}/checkpoints/{policy}/{incarnation}-{step:08d}/"

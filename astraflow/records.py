"""Facts and decisions: everything that participants say to each other, as typed JSON records.

A *fact* is what one participant (pool, trainer, operator) did or wants; it lies in that participant's
outbox. A *decision* is the manager's word; it lies in the decisions log. Anything per trajectory is
columnar: one list per column, one entry per row, so that a decoder touches few objects.

Field names are the stored format: a change here is a change of ``PROTOCOL``.
"""

from __future__ import annotations

import uuid
from typing import TypeVar

import msgspec

from storage.errors import DataError

PROTOCOL = 1
LARGEST_REWARD = 1e30
"""A reward beyond ± this is refused: it and its spread must stay finite as JSON and in a float32 column."""
EVERYWHERE = "*"
"""In place of a region: all that shall have pools."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what participants say."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what the manager says."""


# --- facts of a pool -------------------------------------------------------------------------


class PoolJoined(Fact, frozen=True, kw_only=True, tag="PoolJoined"):
    """A pool is ready to take leases. ``capacity`` is in groups."""

    pool: str  # name in the config
    region: str
    policies: list[str]
    capacity: int
    engine: str
    data_hash: str
    protocol: int = PROTOCOL


class Applied(Fact, frozen=True, kw_only=True, tag="Applied"):
    """The pool's engines of ``policy`` now sample from ``version`` (manifest's step and digest)."""

    policy: str
    version: int
    step: int
    digest: str


class PartsObject(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet object of whole parts of one policy, and its metadata by column.

    Part columns (one entry a part): ``groups, row_starts, row_counts``; a part's rows are contiguous.
    Row columns (one entry a trajectory, in the object's row order): the rest.
    """

    policy: str
    path: str
    size_bytes: int
    hash: str  # xxh3-128 hex of the object's bytes
    groups: list[int]
    row_starts: list[int]
    row_counts: list[int]
    episodes: list[int]
    roles: list[str]
    slots: list[int]
    version_min: list[int]
    version_max: list[int]
    rewards: list[float]
    prompt_tokens: list[int]
    response_tokens: list[int]
    store: str = ""  # URL of the store it lies in; empty: the run's root store


class Committed(Fact, frozen=True, kw_only=True, tag="Committed"):
    """Groups that were played whole, with all parts of each in ``objects``."""

    groups: list[int]
    attempts: list[int]
    objects: list[PartsObject]


class Failed(Fact, frozen=True, kw_only=True, tag="Failed"):
    """A leased group was not played. ``kind``: drained, cancelled, timeout, environment, reward, engine, …"""

    group: int
    attempt: int
    kind: str
    message: str = ""


class Evaluated(Fact, frozen=True, kw_only=True, tag="Evaluated"):
    """An evaluation lease was played whole: the score of each play, and the range of versions of each policy.

    ``low`` and ``high`` name only policies that spoke.
    """

    evaluation: str
    item: int
    attempt: int
    scores: list[float]
    low: dict[str, int]
    high: dict[str, int]
    response_tokens: int = 0


class EvalFailed(Fact, frozen=True, kw_only=True, tag="EvalFailed"):
    """A leased item of an evaluation was not played. ``kind`` as in ``Failed``."""

    item: int
    attempt: int
    kind: str
    message: str = ""


class LeasesWanted(Fact, frozen=True, kw_only=True, tag="LeasesWanted"):
    """The pool asks for ``ahead`` leases beyond its capacity, to begin with when a place is free; at first it has none.

    It never plays more than ``capacity`` groups at once.
    """

    ahead: int


class Draining(Fact, frozen=True, kw_only=True, tag="Draining"):
    """The participant takes no new work."""

    reason: str = ""


class Left(Fact, frozen=True, kw_only=True, tag="Left"):
    """The participant's last word."""

    reason: str = ""


# --- facts of a trainer ----------------------------------------------------------------------


class TrainerJoined(Fact, frozen=True, kw_only=True, tag="TrainerJoined"):
    """A trainer has claimed ``incarnation`` of ``policy`` by a manifest."""

    policy: str
    incarnation: int
    protocol: int = PROTOCOL


class Published(Fact, frozen=True, kw_only=True, tag="Published"):
    """Version ``version`` is in the store: the weights after ``step`` optimizer steps."""

    policy: str
    version: int
    step: int
    incarnation: int
    digest: str
    delta_bytes: int = 0
    full_bytes: int = 0


class Consumed(Fact, frozen=True, kw_only=True, tag="Consumed"):
    """Batch ``batch`` and every batch before it is trained; ``step`` optimizer steps are done.

    ``skipped`` are groups of that batch whose part could not be used; ``reasons`` says why, per group.
    """

    policy: str
    batch: int
    step: int
    incarnation: int
    skipped: list[int] = []
    reasons: list[str] = []
    metrics: dict[str, float] = {}


class Ended(Fact, frozen=True, kw_only=True, tag="Ended"):
    """The policy's trainer has done all its steps (or was told to end) and kept its last checkpoint."""

    policy: str
    reason: str = ""


# --- facts of anyone -------------------------------------------------------------------------


class Wanted(Fact, frozen=True, kw_only=True, tag="Wanted"):
    """A wish: ``drain`` or ``lost`` (its process is dead) a participant, ``stop``, ``pause``/``resume``.

    What is paused is the policy ``target``, the ``region``, or without either the run.
    """

    what: str
    target: str = ""
    reason: str = ""
    region: str = ""


class PoolsWanted(Fact, frozen=True, kw_only=True, tag="PoolsWanted"):
    """A person's word on how many pools a region shall have, from now on whatever load reports say.

    ``pools`` below 0 hands the region back to the rule of the config.
    """

    region: str
    pools: int
    reason: str = ""


AnyFact = (
    PoolJoined
    | Applied
    | Committed
    | Failed
    | Evaluated
    | EvalFailed
    | LeasesWanted
    | Draining
    | Left
    | TrainerJoined
    | Published
    | Consumed
    | Ended
    | Wanted
    | PoolsWanted
)


class FactRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object of an outbox: facts that become known together or not at all."""

    id: str
    participant: str
    facts: list[AnyFact]


# --- decisions -------------------------------------------------------------------------------


class Epoch(Decision, frozen=True, kw_only=True, tag="Epoch"):
    """A manager takes over; every older one is fenced from here on."""

    n: int
    holder: str
    data_hash: str
    config_hash: str
    code: str


class Reconfigured(Decision, frozen=True, kw_only=True, tag="Reconfigured"):
    """Config, code or data differ from those of the epoch before."""

    config_hash: str
    code: str
    data_hash: str


class Leased(Decision, frozen=True, kw_only=True, tag="Leased"):
    """``pool`` shall play these groups: one entry each of group, problem (row number) and attempt."""

    pool: str
    groups: list[int]
    problems: list[int]
    attempts: list[int]


class Admitted(Decision, frozen=True, kw_only=True, tag="Admitted"):
    """These groups are in; any other attempt of them is void."""

    groups: list[int]
    attempts: list[int]
    participant: str


class Expired(Decision, frozen=True, kw_only=True, tag="Expired"):
    """These leases of ``pool`` are over without a result; the groups are leased again or dropped."""

    pool: str
    groups: list[int]
    attempts: list[int]
    reason: str


class Dropped(Decision, frozen=True, kw_only=True, tag="Dropped"):
    """Parts of ``policy`` that will never be trained on.

    ``reason``: failed, stale, zero_advantage, overlong, surplus, ended, skipped, … or a filter's name.
    """

    policy: str
    groups: list[int]
    reason: str


class Batched(Decision, frozen=True, kw_only=True, tag="Batched"):
    """Batch ``n`` of ``policy``: whole parts, where they lie, in training order. Immutable.

    ``paths, stores, hashes`` name objects; ``groups, objects, row_starts, row_counts, versions`` have one
    entry a part, ``objects`` being an index into ``paths`` and ``versions`` the part's oldest version.
    """

    policy: str
    n: int
    paths: list[str]
    stores: list[str]
    hashes: list[str]
    groups: list[int]
    objects: list[int]
    row_starts: list[int]
    row_counts: list[int]
    versions: list[int]


class Rejected(Decision, frozen=True, kw_only=True, tag="Rejected"):
    """A record of an outbox had no effect; ``quarantined`` when the participant is not heard any more."""

    participant: str
    seq: int
    reason: str
    quarantined: bool = False


class LoadReported(Decision, frozen=True, kw_only=True, tag="LoadReported"):
    """Figures every N steps: what an autoscaler and a person need. ``pools`` has those of each pool that plays."""

    policy: str
    step: int
    figures: dict[str, float]
    pools: dict[str, dict[str, float]] = {}


class Scaled(Decision, frozen=True, kw_only=True, tag="Scaled"):
    """From now on these regions shall have so many pools; others keep what they have.

    ``held`` names all regions whose number is a person's word, which load reports do not move.
    """

    pools: dict[str, int]
    held: list[str]
    reason: str


class EvalStarted(Decision, frozen=True, kw_only=True, tag="EvalStarted"):
    """Round ``round`` of an evaluation begins: each of its problems is played with at least these versions.

    ``reason``: start, version, end.
    """

    evaluation: str
    round: int
    versions: dict[str, int]
    reason: str


class EvalLeased(Decision, frozen=True, kw_only=True, tag="EvalLeased"):
    """``pool`` shall play these problems of an evaluation; items are numbered over the whole run."""

    pool: str
    evaluation: str
    round: int
    items: list[int]
    problems: list[int]
    attempts: list[int]


class EvalExpired(Decision, frozen=True, kw_only=True, tag="EvalExpired"):
    """These items' leases are over without a result; they are leased again, or are missing."""

    pool: str
    items: list[int]
    attempts: list[int]
    reason: str


class EvalReported(Decision, frozen=True, kw_only=True, tag="EvalReported"):
    """A round is over: leases of it that still run are void. ``low`` and ``high``: the versions that played.

    ``reason``: complete, deadline, stopped. ``problems`` were scored, ``missing`` were not.
    """

    evaluation: str
    round: int
    low: dict[str, int]
    high: dict[str, int]
    problems: int
    missing: int
    figures: dict[str, float]
    reason: str


class DrainRequested(Decision, frozen=True, kw_only=True, tag="DrainRequested"):
    """``participants`` shall finish or hand back their work, and leave. An empty list means all."""

    participants: list[str]
    reason: str


class Paused(Decision, frozen=True, kw_only=True, tag="Paused"):
    """No leases are given for ``policy`` (empty: for any) until ``Resumed``; with a ``region``, to no pool there.

    ``EVERYWHERE`` is the manager's own word: each region that shall have pools is paused, so no deadline runs.
    """

    policy: str
    reason: str = ""
    region: str = ""


class Resumed(Decision, frozen=True, kw_only=True, tag="Resumed"):
    """Leases are given again for ``policy`` (empty: for all), or to pools of the ``region``."""

    policy: str
    region: str = ""


class Stopped(Decision, frozen=True, kw_only=True, tag="Stopped"):
    """The last decision of a run."""

    reason: str


AnyDecision = (
    Epoch
    | Reconfigured
    | Leased
    | Admitted
    | Expired
    | Dropped
    | Batched
    | Rejected
    | LoadReported
    | Scaled
    | EvalStarted
    | EvalLeased
    | EvalExpired
    | EvalReported
    | DrainRequested
    | Paused
    | Resumed
    | Stopped
)


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the decisions log: what was seen and what was decided on it.

    ``now`` is the manager's monotonic clock in seconds since its epoch began; ``cursors`` are the next
    unread outbox numbers of the participants whose cursor moved in this record; ``observations`` are the
    beat counts (changes of the status object) that moved.
    """

    id: str
    epoch: int
    now: float
    cursors: dict[str, int]
    observations: dict[str, int]
    decisions: list[AnyDecision]


class Status(msgspec.Struct, kw_only=True):
    """``status/{participant}.json``: overwritten at each beat, advisory only.

    ``role`` is manager, pool, trainer, mirror, experiment or operator; ``state`` one word; ``waiting`` a reason with
    its deadline when the participant waits; ``figures`` numbers for the eye.
    """

    participant: str
    role: str
    state: str
    beat: int = 0
    name: str = ""  # pool's or policy's name
    region: str = ""
    pid: int = 0
    flow_run: str = ""
    waiting: str = ""
    figures: dict[str, float] = {}


T = TypeVar("T", FactRecord, DecisionRecord, Status)

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODERS: dict[type, msgspec.json.Decoder] = {  # type: ignore[type-arg]
    kind: msgspec.json.Decoder(kind) for kind in (FactRecord, DecisionRecord, Status)
}


def new_id() -> str:
    """A record id: random, so that two writers never share one."""
    return uuid.uuid4().hex


def encode(record: FactRecord | DecisionRecord | Status) -> bytes:
    """The record's stored bytes; the same record always gives the same bytes."""
    return _ENCODER.encode(record)


def decode(data: bytes, kind: type[T], *, where: str) -> T:
    """Parse a stored record. Raises ``DataError`` (kind ``undecodable``) naming ``where``."""
    try:
        record: T = _DECODERS[kind].decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(
            f"not a {kind.__name__}: {error}",
            where=where,
            remedy="The record is left out; its writer should be upgraded or ended",
            kind="undecodable",
        ) from error
    return record

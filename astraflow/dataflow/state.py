"""The manager's state as a fold: facts in, decisions in, nothing else.

``absorb`` takes one validated fact record, ``apply`` one decision, ``begin`` and ``observe`` what a decision
record saw. None of them asks, draws or decides, so the same logs give the same state; ``step`` decides on it.
Between two decision records nothing is pending: ``settle`` forgets facts that had no effect (late attempts).
A snapshot holds the whole state as JSON and comes back exactly, order of dictionaries included. All effects of
facts and decisions stand in this one file, some 400 lines, so that nothing else changes the state; those of
evaluations' decisions, which touch nothing else, stand beside their book.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.algorithms import FILTER_ERROR, Algorithms, load_algorithms
from astraflow.dataflow.evaluation import fold_evaluation
from astraflow.dataflow.guarded_curator import GuardedCurator
from astraflow.dataflow.leases import Handback, LeaseBook
from astraflow.dataflow.ledger import Ledger, decode_ledger
from astraflow.dataflow.participants import AppliedVersion, Participant
from astraflow.dataflow.parts import Arrival, KeptColumns, PartRows
from astraflow.dataflow.policy_queue import PolicyQueue, Window
from storage.errors import DataError

AWAY = ("silent", "lost")
"""Why leases end whose pool is not heard."""
RETURNING = ("stale", "skipped")
"""Drops whose problem is leased again in a new group."""


class RunState:
    """The fold of one run."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.flow = config.dataflow
        self.names = sorted(config.policies)
        trainers = {name: config.trainer_of(name) for name in config.trained}
        self.batch_size = {name: trainer.batch_size for name, trainer in trainers.items()}
        self.steps = {name: trainer.steps for name, trainer in trainers.items()}
        self.algorithms: Algorithms = load_algorithms(config)
        self.curator = GuardedCurator(self.algorithms.curator, config.problem_count)
        self.ledger = Ledger(policies={name: PolicyQueue(frozen=config.policies[name].frozen) for name in self.names})
        self.arrivals: dict[int, list[Arrival]] = {}  # by group, first come first
        self.columns = KeptColumns()  # of the objects of this step; saves time only
        self.handbacks: list[Handback] = []
        self.eval_handbacks: list[Handback] = []
        self.wishes: list[r.Wanted] = []
        self.pool_wishes: list[r.PoolsWanted] = []
        self.is_marked = False  # in this step
        self.sifted: dict[str, int] = {}  # policy -> batch that its ready parts were last judged for; saves time only

    # --- what everyone asks ---------------------------------------------------------------------

    @property
    def policies(self) -> dict[str, PolicyQueue]:
        return self.ledger.policies

    @property
    def participants(self) -> dict[str, Participant]:
        return self.ledger.participants

    @property
    def leases(self) -> LeaseBook:
        return self.ledger.leases

    @property
    def now(self) -> float:
        return self.ledger.now

    @property
    def draining(self) -> bool:
        return self.ledger.draining_since is not None

    @property
    def consumed(self) -> dict[str, int]:
        """Steps that each trained policy has done."""
        return {policy: self.policies[policy].consumed for policy in self.batch_size}

    @property
    def all_ended(self) -> bool:
        """Every policy's trainer has done what it had to do."""
        return all(self.policies[policy].ended for policy in self.batch_size)

    def cursor_of(self, participant: str) -> int:
        """The next unread number of an outbox."""
        known = self.participants.get(participant)
        return known.cursor if known else 0

    def load(self, policy: str) -> int:
        """Parts of a policy that are leased, ready, or batched and not consumed."""
        queue = self.policies[policy]
        return len(self.leases.leased) + len(queue.ready) + queue.batched

    def mark(self) -> None:
        """Count what was played until now, once a decision record: facts that it takes in count only from its end."""
        if not self.is_marked:
            self.leases.mark(self.now, sum(pool.playing for pool in self.participants.values()))
            self.is_marked = True

    # --- the fold -------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """A decision record's clock."""
        self.ledger.now = now

    def observe(self, observations: Mapping[str, int]) -> None:
        """Status objects changed: these participants are alive (and known from now on)."""
        for name in sorted(observations):
            participant = self.participants.setdefault(name, Participant())
            participant.beats = observations[name]
            participant.heard_at = self.now
            participant.lost = False

    def absorb(self, participant: str, record: r.FactRecord) -> None:
        """Fold one fact record that passed validation."""
        teller = self.participants[participant]
        for fact in record.facts:
            match fact:
                case r.Committed():
                    self._absorb_committed(participant, fact)
                case r.Applied():
                    teller.applied[fact.policy] = AppliedVersion(fact.version, fact.step)
                    self.policies[fact.policy].learn(fact.version, fact.step, fact.digest)
                case r.Failed():
                    self.handbacks.append(Handback(participant, fact.group, fact.attempt, fact.kind))
                case r.Evaluated():
                    holder = self.ledger.evaluations.score(fact.item, fact.scores, fact.low, fact.high)
                    if holder:
                        self.participants[holder].evals.pop(fact.item, None)
                case r.EvalFailed():
                    self.eval_handbacks.append(Handback(participant, fact.item, fact.attempt, fact.kind))
                case r.Consumed():
                    self._absorb_consumed(fact)
                case r.Published():
                    queue = self.policies[fact.policy]
                    queue.learn(fact.version, fact.step, fact.digest)
                    queue.incarnation = max(queue.incarnation, fact.incarnation)
                case _:
                    self._absorb_presence(teller, fact)

    def _absorb_presence(self, teller: Participant, fact: r.AnyFact) -> None:
        match fact:
            case r.PoolJoined():
                teller.role, teller.name, teller.region = "pool", fact.pool, fact.region
                teller.policies, teller.capacity, teller.ahead = fact.policies, fact.capacity, 0
            case r.LeasesWanted():
                teller.ahead = fact.ahead
            case r.TrainerJoined():
                teller.role, teller.name, teller.policies = "trainer", fact.policy, [fact.policy]
                queue = self.policies[fact.policy]
                queue.joined = True
                queue.incarnation = max(queue.incarnation, fact.incarnation)
            case r.Ended():
                self.policies[fact.policy].ended = True
            case r.Draining():
                teller.draining = True
            case r.Left():
                teller.left = True
            case r.Wanted():
                self.wishes.append(fact)
                if fact.what == "lost" and fact.target in self.participants:
                    self.participants[fact.target].lost = True
            case r.PoolsWanted():
                self.pool_wishes.append(fact)

    def _absorb_committed(self, participant: str, fact: r.Committed) -> None:
        parts: dict[int, dict[str, PartRows]] = {group: {} for group in fact.groups}
        for thing in fact.objects:
            policy = thing.policy
            for group, rows in zip(thing.groups, self.columns.of(thing).parts, strict=True):
                parts[group][policy] = rows
        for (group, rows_of), attempt in zip(parts.items(), fact.attempts, strict=True):
            self.arrivals.setdefault(group, []).append(Arrival(participant, attempt, rows_of))

    def _absorb_consumed(self, fact: r.Consumed) -> None:
        queue = self.policies[fact.policy]
        queue.incarnation = max(queue.incarnation, fact.incarnation)
        if fact.batch < queue.consumed:
            return  # a resumed trainer says again what is known
        replay = self.algorithms.replays[fact.policy]
        queue.consume(fact.batch, frozenset(fact.skipped), replay.consumed)
        replay.forget(fact.skipped)
        queue.measure(fact.metrics, is_first=fact.batch == 0)
        queue.forget_versions(self.flow.max_staleness)

    def apply(self, decision: r.AnyDecision) -> None:
        """Fold one decision."""
        self.mark()
        match decision:
            case r.Leased():
                self._apply_leased(decision)
            case r.Admitted():
                self._apply_admitted(decision)
            case r.Dropped():
                self._apply_dropped(decision)
            case r.Batched():
                replayed = self.policies[decision.policy].form(decision.n, decision.groups)
                self.algorithms.replays[decision.policy].used(decision.n, replayed)
            case r.Expired():
                self._apply_expired(decision)
            case r.Epoch():
                self._apply_epoch(decision)
            case r.Rejected():
                participant = self.participants[decision.participant]
                participant.rejects += 1
                participant.quarantined = participant.quarantined or decision.quarantined
            case r.LoadReported():
                book = self.leases
                window = Window(step=decision.step, from_s=book.time_s, played_from_s=book.played_s)
                self.policies[decision.policy].window = window
                self.ledger.scaling.hear(decision)
            case _:
                self._apply_order(decision)

    def _apply_order(self, decision: r.AnyDecision) -> None:
        match decision:
            case r.DrainRequested():
                for name in decision.participants:
                    self.participants.setdefault(name, Participant()).draining = True
                if not decision.participants:
                    self._drain_all(decision.reason)
            case r.Paused() | r.Resumed():
                self._apply_pause(decision)
            case r.EvalStarted() | r.EvalLeased() | r.EvalExpired() | r.EvalReported():
                book = self.ledger.evaluations
                fold_evaluation(book, self.participants, decision, self.now, self.flow.max_attempts)
            case r.Scaled():
                self.ledger.scaling.take(decision, self.consumed)
            case r.Reconfigured():
                self.ledger.config_hash, self.ledger.code = decision.config_hash, decision.code
                self.ledger.data_hash = decision.data_hash
            case r.Stopped():
                self.ledger.stopped = True

    def _drain_all(self, reason: str) -> None:
        self.ledger.draining_since = self.now
        self.ledger.drain_reason = reason
        for participant in self.participants.values():
            participant.draining = participant.draining or bool(participant.role)

    def _apply_pause(self, decision: r.Paused | r.Resumed) -> None:
        pausing = isinstance(decision, r.Paused)
        if decision.region:
            self.ledger.scaling.pause(decision, self.consumed)
            return
        if not decision.policy:
            self.ledger.paused = pausing
            return
        queue = self.policies[decision.policy]
        queue.paused = pausing
        queue.pause_reason = decision.reason if isinstance(decision, r.Paused) else ""
        if not pausing:
            queue.drawn = queue.filtered = 0

    def _apply_epoch(self, decision: r.Epoch) -> None:
        ledger = self.ledger
        if ledger.epoch == 0:
            ledger.config_hash, ledger.code, ledger.data_hash = decision.config_hash, decision.code, decision.data_hash
        ledger.epoch = decision.n
        self.leases.restart_timers()
        ledger.evaluations.restart_timers()
        for participant in self.participants.values():
            participant.heard_at = 0.0
        if ledger.draining_since is not None:
            ledger.draining_since = 0.0

    def _apply_leased(self, decision: r.Leased) -> None:
        book = self.leases
        if decision.groups and decision.groups[0] == book.next_group:
            for problem in decision.problems:
                if book.returned and book.returned[0] == problem:
                    book.returned.pop(0)
                else:
                    self.curator.leased(problem)
            self._lease(decision.pool, decision.problems)
            return
        held = self.participants[decision.pool].held
        for group, attempt in zip(decision.groups, decision.attempts, strict=True):
            book.lease_again(group, decision.pool, self.now)
            held[group] = attempt

    def lease_new(self, pool: str, count: int) -> list[int]:
        """Fold leases of ``count`` new groups and return their problems: each is asked for behind the one before.

        Problems that came back go first; where the curator names none that is there, they go in file order.
        """
        self.mark()
        returned, problems, first = self.leases.returned, [], self.leases.next_group
        for group in range(first, first + count):
            if returned:
                problems.append(returned.pop(0))
                continue
            problem = self.curator.select(group)
            self.curator.leased(problem)
            problems.append(problem)
        self._lease(pool, problems)
        return problems

    def _lease(self, pool: str, problems: Sequence[int]) -> None:
        groups = self.leases.lease_new(pool, problems, self.now)
        self.participants[pool].held |= dict.fromkeys(groups, 1)

    def _apply_admitted(self, decision: r.Admitted) -> None:
        participants, close, arrivals, name = self.participants, self.leases.close, self.arrivals, decision.participant
        observe, teller = self.curator.observe, participants[name]
        teller.failures = teller.rejects = 0
        teller.note_admitted(len(decision.groups), self.leases.ages(decision.groups, decision.attempts, self.now))
        admitted: dict[str, list[tuple[int, int, PartRows]]] = {}
        for group, attempt in zip(decision.groups, decision.attempts, strict=True):
            arrival = arrivals[group][0] if group in arrivals else None
            if arrival is None or arrival.attempt != attempt or arrival.participant != name:  # not the usual case
                arrival = self.arrival_of(group, attempt, name)
            found = close(group)
            problem = found.problem
            participants[found.holders[-1]].held.pop(group, None)
            for policy, rows in arrival.parts.items():
                admitted.setdefault(policy, []).append((group, problem, rows))
                observe(problem, rows)
        for policy, parts in admitted.items():
            self.policies[policy].admit(parts)

    def arrival_of(self, group: int, attempt: int, participant: str) -> Arrival:
        """The first commit of this attempt in this record. Raises ``DataError`` if there is none."""
        for arrival in self.arrivals.get(group, ()):  # the first, as a rule
            if arrival.attempt == attempt and arrival.participant == participant:
                return arrival
        raise DataError(
            f"group {group}, attempt {attempt} was admitted, but {participant} never committed it",
            where=f"decision record {self.ledger.seq + 1}",
            remedy="The logs do not belong together: was an outbox changed or copied?",
            kind="log",
        )

    def _apply_dropped(self, decision: r.Dropped) -> None:
        queue = self.policies[decision.policy]
        is_filter = decision.reason in self.algorithms.filters or decision.reason == FILTER_ERROR
        for group in decision.groups:
            part = queue.take(group)
            queue.count_drop(decision.reason, part.tokens if part else 0)
            if part is not None and decision.reason in RETURNING:
                self.leases.returned.append(part.problem)
            if is_filter:
                queue.filtered += 1
            if group in self.leases.open:
                self._drop_open(group)

    def _drop_open(self, group: int) -> None:
        """One policy less waits for this group; the last one closes it."""
        found = self.leases.open[group]
        found.dropped += 1
        if found.dropped == len(self.names):
            self.leases.close(group)
            self.participants[found.holders[-1]].held.pop(group, None)

    def _apply_expired(self, decision: r.Expired) -> None:
        teller = self.participants[decision.pool]
        for group, attempt in zip(decision.groups, decision.attempts, strict=True):
            teller.held.pop(group, None)
            self.leases.expire(group, attempt)
            if decision.reason not in AWAY:  # all at once: they say nothing of how it plays
                teller.failures += 1

    def settle(self) -> None:
        """End a decision record: what had no effect in it never will."""
        self.arrivals.clear()
        self.columns.clear()
        self.handbacks.clear()
        self.eval_handbacks.clear()
        self.wishes.clear()
        self.pool_wishes.clear()
        if self.is_marked:
            for participant in self.participants.values():
                participant.settle()
        self.is_marked = False

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The whole state as JSON."""
        self.ledger.curator = self.algorithms.curator.state()
        self.ledger.replays = {name: replay.state() for name, replay in self.algorithms.replays.items()}
        return msgspec.json.encode(self.ledger)

    @classmethod
    def restore(cls, config: RunConfig, data: bytes, *, where: str) -> RunState:
        """Inverse of ``snapshot``. Raises ``DataError`` if ``data`` is not a snapshot of this format."""
        state = cls(config)
        ledger = state.ledger = decode_ledger(data, state.names, where=where)
        state.algorithms.curator.restore(ledger.curator)
        for name, replay in state.algorithms.replays.items():
            replay.restore(ledger.replays.get(name, {}))
        return state

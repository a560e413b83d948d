"""The invariants of a run, checked from its logs alone, without the manager's own state code.

``check_run`` walks the decisions log once, takes facts in as its cursors say, and asserts at every record. It keeps
its own plain books (dictionaries of part states), so a mistake in the manager's fold is not repeated here.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.replay import fold_run, verify_run
from storage import open_store
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore
from storage.tables import hash_bytes


@dataclass
class Books:
    """What an accountant knows of one run."""

    config: RunConfig
    problems: dict[int, int] = field(default_factory=dict)  # group -> problem
    attempts: dict[int, int] = field(default_factory=dict)  # group -> last attempt
    held: dict[int, tuple[str, int]] = field(default_factory=dict)  # group -> (participant, attempt), while leased
    leases: dict[tuple[int, int], str] = field(default_factory=dict)  # every lease ever
    admitted: set[int] = field(default_factory=set)
    commits: dict[tuple[int, int, str], dict[str, tuple]] = field(default_factory=dict)
    parts: dict[str, dict[int, str]] = field(default_factory=dict)  # policy -> group -> state
    batches: dict[str, list[list[int]]] = field(default_factory=dict)
    fresh: dict[str, list[int]] = field(default_factory=dict)  # parts of each batch that are not replayed
    replayed: Counter = field(default_factory=Counter)  # (policy, group) -> uses
    consumed: dict[str, int] = field(default_factory=dict)
    versions: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    pools: dict[str, r.PoolJoined] = field(default_factory=dict)
    ahead: Counter = field(default_factory=Counter)  # leases that a pool asked for beyond its capacity
    applied: dict[tuple[str, str], int] = field(default_factory=dict)  # (participant, policy) -> step
    live: set[str] = field(default_factory=set)
    cursors: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)  # open ones: number, least versions
    items: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # item -> evaluation, problem, attempts
    item_holders: dict[int, str] = field(default_factory=dict)  # of leased ones
    scored: dict[str, set[int]] = field(default_factory=dict)  # problems of open rounds
    round_items: dict[str, set[int]] = field(default_factory=dict)  # leased in open rounds, and not given up
    wished: list[r.PoolsWanted] = field(default_factory=list)  # numbers of pools, not yet answered
    pools_wanted: dict[str, int] = field(default_factory=dict)  # by region
    pools_held: list[str] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)  # regions, and ``EVERYWHERE``
    counts: Counter = field(default_factory=Counter)


def check_run(store: ObjectStore, config: RunConfig, *, verify: bool = True, has_data: bool = True) -> Counter:
    """Assert all invariants over the run's logs; returns how often each thing happened."""
    keys = RunKeys(config.name)
    books = Books(config)
    books.pools_wanted = dict(Counter(pool.region for pool in config.pools.values()))
    for policy in config.policies:
        books.parts[policy], books.batches[policy], books.versions[policy] = {}, [], {}
        books.consumed[policy], books.fresh[policy] = 0, []
    records = _decisions(store, keys)
    _check_ids(store, keys, records)
    _check_epochs(records)
    for record in records:
        rejected = {(d.participant, d.seq) for d in record.decisions if isinstance(d, r.Rejected)}
        for name in sorted(record.cursors):
            start = books.cursors.get(name, 0)
            assert record.cursors[name] >= start, "a cursor moved back"
            for seq in range(start, record.cursors[name]):
                if (name, seq) not in rejected:
                    _take_facts(books, name, r.decode(store.get(keys.outbox(name, seq)), r.FactRecord, where=""))
            books.cursors[name] = record.cursors[name]
        for decision in record.decisions:
            _take_decision(books, decision)
        _check_books(books)
    _check_manifests(store, keys, books)
    if has_data:
        _check_paths(store, keys, books, records)
    if any(isinstance(d, r.Stopped) for record in records for d in record.decisions):
        _check_end(books)
        _check_progress(books, records)
    if verify:
        assert verify_run(store, keys, config) == len(records)
        quick, whole = fold_run(store, keys, config), fold_run(store, keys, config, from_snapshot=False)
        quick_state, whole_state = quick.algorithms.curator.state(), whole.algorithms.curator.state()
        assert quick_state == whole_state, "a snapshot and what follows give another curator than all records"
        assert quick.snapshot() == whole.snapshot()
    return books.counts


# --- logs --------------------------------------------------------------------------------------


def _decisions(store: ObjectStore, keys: RunKeys) -> list[r.DecisionRecord]:
    names = [info.key for info in store.list(f"{keys.root}decisions/")]
    assert names == [keys.decision(seq) for seq in range(len(names))], "the decisions log has a gap"
    return [r.decode(store.get(name), r.DecisionRecord, where=name) for name in names]


def _check_ids(store: ObjectStore, keys: RunKeys, records: list[r.DecisionRecord]) -> None:
    ids = Counter(record.id for record in records)
    numbers: dict[str, int] = {}
    for info in store.list(keys.outboxes):
        participant, seq = info.key.removeprefix(keys.outboxes).removesuffix(".json").split("/")
        assert int(seq) == numbers.get(participant, 0), f"a gap in the outbox of {participant}"
        numbers[participant] = int(seq) + 1
        try:
            ids[r.decode(store.get(info.key), r.FactRecord, where="").id] += 1
        except DataError:
            continue
    assert max(ids.values()) == 1, "a record id occurs twice"


def _check_epochs(records: list[r.DecisionRecord]) -> None:
    epoch, now, is_over = 0, 0.0, False
    for record in records:
        assert not is_over, "a record follows Stopped"
        for decision in record.decisions:
            if isinstance(decision, r.Epoch):
                assert decision.n == epoch + 1, "epochs do not count up by one"
                epoch, now = decision.n, 0.0
            is_over = isinstance(decision, r.Stopped)
        assert record.epoch == epoch, "a record of a fenced epoch has effect"
        assert record.now >= now, "the clock of an epoch runs backwards"
        now = record.now


# --- facts -------------------------------------------------------------------------------------


def _take_facts(books: Books, name: str, record: r.FactRecord) -> None:
    for fact in record.facts:
        match fact:
            case r.PoolJoined():
                books.pools[name] = fact
            case r.LeasesWanted(ahead=ahead):
                assert 0 <= ahead <= books.pools[name].capacity, (
                    "a number of leases ahead that is not possible was taken"
                )
                books.ahead[name] = ahead
            case r.Applied() | r.Published():
                known = books.versions[fact.policy].setdefault(fact.version, (fact.step, fact.digest))
                assert known == (fact.step, fact.digest), "two digests of one version"
                if isinstance(fact, r.Applied):
                    books.applied[name, fact.policy] = fact.step
            case r.TrainerJoined():
                books.live.add(fact.policy)
            case r.PoolsWanted():
                books.wished.append(fact)
            case r.Ended():
                books.live.discard(fact.policy)
            case r.Committed():
                _take_commit(books, name, fact)
            case r.Consumed():
                _take_consumed(books, fact)
            case r.Evaluated(evaluation=evaluation, item=item):
                is_open = evaluation in books.rounds and books.items[item][1] not in books.scored[evaluation]
                if is_open and _is_of_round(books, evaluation, item):
                    books.scored[evaluation].add(books.items[item][1])
                    books.item_holders.pop(item, None)


def _is_of_round(books: Books, evaluation: str, item: int) -> bool:
    """Whether the item was leased in the round that is open, and has attempts left."""
    return item in books.round_items.get(evaluation, set())


def _take_commit(books: Books, name: str, fact: r.Committed) -> None:
    for group, attempt in zip(fact.groups, fact.attempts, strict=True):
        assert group in books.attempts, "a commit of a group that was never leased was taken"
        books.commits[group, attempt, name] = {}
    attempts = dict(zip(fact.groups, fact.attempts, strict=True))
    for thing in fact.objects:
        for group, start, count in zip(thing.groups, thing.row_starts, thing.row_counts, strict=True):
            row = (thing.path, thing.store, thing.hash, start, count, min(thing.version_min[start : start + count]))
            books.commits[group, attempts[group], name][thing.policy] = row


def _take_consumed(books: Books, fact: r.Consumed) -> None:
    assert fact.batch < len(books.batches[fact.policy]), "a batch was consumed before it was formed"
    for n in range(books.consumed[fact.policy], fact.batch + 1):
        books.counts["consumed"] += 1
        for group in books.batches[fact.policy][n]:
            if books.parts[fact.policy][group] in ("consumed", "dropped:ended"):
                continue  # replayed; or another life's ``Ended`` was heard first, and dropped stays dropped
            skipped = n == fact.batch and group in fact.skipped
            assert books.parts[fact.policy][group] == "batched"
            books.parts[fact.policy][group] = "skipped" if skipped else "consumed"
    books.consumed[fact.policy] = max(books.consumed[fact.policy], fact.batch + 1)


# --- decisions -----------------------------------------------------------------------------------


def _take_decision(books: Books, decision: r.AnyDecision) -> None:
    books.counts[type(decision).__name__] += 1
    match decision:
        case r.Leased():
            for group, problem, attempt in zip(decision.groups, decision.problems, decision.attempts, strict=True):
                _take_lease(books, decision.pool, group, problem, attempt)
        case r.Expired():
            for group, attempt in zip(decision.groups, decision.attempts, strict=True):
                assert books.held.pop(group) == (decision.pool, attempt), "a lease expired that nobody held"
            books.counts[f"expired_{decision.reason}"] += len(decision.groups)
        case r.Admitted():
            for group, attempt in zip(decision.groups, decision.attempts, strict=True):
                _take_admission(books, group, attempt, decision.participant)
        case r.Dropped():
            for group in decision.groups:
                _take_drop(books, decision.policy, group, decision.reason)
        case r.Batched():
            _take_batch(books, decision)
        case r.EvalStarted() | r.EvalLeased() | r.EvalExpired() | r.EvalReported():
            _take_evaluation(books, decision)
        case r.Scaled():
            _take_scaled(books, decision)
        case r.Paused(region=region) if region:
            books.paused.add(region)
            books.counts["paused_everywhere" if region == r.EVERYWHERE else "paused_region"] += 1
        case r.Resumed(region=region) if region:
            books.paused.discard(region)


def _take_scaled(books: Books, scaled: r.Scaled) -> None:
    """By reports only within bounds, where reports may act, and never where a person's word holds."""
    scale, wished = books.config.scale, books.wished.pop(0) if books.wished else None
    if wished is not None:
        is_held = wished.pools >= 0
        assert (wished.region in scaled.held) == is_held, "a wish was not taken at its word"
        assert not is_held or scaled.pools == {wished.region: wished.pools}, "another number than was wished"
        books.counts["scaled_by_wish"] += 1
    else:
        assert scale.mode == "act", "load reports moved pools that they must not move"
        assert not set(scaled.pools) & set(books.pools_held), "load reports moved what a person holds"
        assert not set(scaled.pools) & books.paused, "load reports moved a paused region"
        assert all(0 <= pools <= scale.most for pools in scaled.pools.values())
        assert sum((books.pools_wanted | scaled.pools).values()) >= scale.least
        books.counts["scaled_by_load"] += 1
    books.pools_wanted |= scaled.pools
    books.pools_held = scaled.held


def _take_evaluation(books: Books, decision: r.EvalStarted | r.EvalLeased | r.EvalExpired | r.EvalReported) -> None:
    match decision:
        case r.EvalStarted(evaluation=name):
            assert name not in books.rounds, "two rounds of an evaluation at once"
            newest = {policy: max(found, default=-1) for policy, found in books.versions.items()}
            assert all(decision.versions[policy] <= newest[policy] for policy in newest), "versions to come"
            books.rounds[name] = (decision.round, decision.versions)
            books.scored[name], books.round_items[name] = set(), set()
        case r.EvalLeased(evaluation=name):
            assert books.rounds[name][0] == decision.round, "a lease of a round that is over"
            joined = books.pools[decision.pool]
            assert joined.region not in books.paused, "an evaluation in a paused region"
            for item, problem, attempt in zip(decision.items, decision.problems, decision.attempts, strict=True):
                before = books.items.get(item, (name, problem, 0))
                assert before == (name, problem, attempt - 1) and item not in books.item_holders, "an item leased twice"
                assert problem not in books.scored[name], "a problem that was scored is leased again"
                books.items[item] = (name, problem, attempt)
                books.item_holders[item] = decision.pool
                books.round_items[name].add(item)
            mine = sum(holder == decision.pool for holder in books.item_holders.values())
            is_last = not books.live
            assert mine <= (joined.capacity if is_last else max(1, joined.capacity // 10)), "more than its quota"
        case r.EvalExpired():
            for item, attempt in zip(decision.items, decision.attempts, strict=True):
                assert books.item_holders.pop(item) == decision.pool, "an item's lease expired that nobody held"
                if attempt >= books.config.dataflow.max_attempts:
                    books.round_items[books.items[item][0]].discard(item)  # missing
        case r.EvalReported(evaluation=name):
            assert decision.problems == len(books.scored.pop(name)), "a report counts other problems than were scored"
            assert decision.problems + decision.missing == books.config.evaluations[name].problem_count
            least = books.rounds.pop(name)[1]
            assert all(version >= least[policy] for policy, version in decision.low.items()), "older versions played"
            books.item_holders = {i: h for i, h in books.item_holders.items() if books.items[i][0] != name}
            books.counts[f"eval_{decision.reason}"] += 1


def _load(books: Books, policy: str) -> int:
    states = books.parts[policy].values()
    return len(books.held) + sum(state in ("ready", "batched") for state in states)


def _bound(books: Books, policy: str, pool: str) -> int:
    trainer = books.config.trainer_of(policy)
    newest = max(step for step, _ in books.versions[policy].values())
    behind = newest - books.applied[pool, policy]
    first = books.consumed[policy]
    last = min(first + books.config.dataflow.max_staleness + 1 - behind, trainer.steps)
    fresh = books.fresh[policy]  # of batches that are formed; others have batch_size less what replay adds
    return sum(fresh[n] if n < len(fresh) else trainer.batch_size for n in range(first, last))


def _take_lease(books: Books, pool: str, group: int, problem: int, attempt: int) -> None:
    assert attempt == books.attempts.get(group, 0) + 1, "attempts do not count up"
    assert attempt <= books.config.dataflow.max_attempts, "too many attempts"
    assert group not in books.held and group not in books.admitted, "a group is leased twice at once"
    if attempt == 1:
        assert group == len(books.problems), "group numbers have a gap"
        books.problems[group] = problem
        for parts in books.parts.values():
            parts[group] = "open"
    assert books.problems[group] == problem, "a group changed its problem"
    assert pool in books.pools, "a lease of a pool that nobody knows"
    joined = books.pools[pool]
    assert joined.region not in books.paused, "a lease in a paused region"
    mine = sum(holder == pool for holder, _ in books.held.values())
    assert mine < joined.capacity + books.ahead[pool], "a pool without room"
    books.counts["leased_ahead"] += mine >= joined.capacity
    live = [policy for policy in books.config.trained if policy in books.live]
    gates = [_load(books, policy) < _bound(books, policy, pool) for policy in live]
    assert all(gates) if books.config.dataflow.coupling == "slowest" else any(gates), "admission is above its bound"
    books.attempts[group] = attempt
    books.held[group] = (pool, attempt)
    books.leases[group, attempt] = pool


def _take_admission(books: Books, group: int, attempt: int, participant: str) -> None:
    assert group not in books.admitted, "two attempts of one group were admitted"
    assert books.leases[group, attempt] == participant, "a group was admitted from a pool that never held it"
    brought = books.commits[group, attempt, participant]
    books.admitted.add(group)
    if books.held.pop(group, (participant, attempt)) != (participant, attempt):
        books.counts["late_attempt_won"] += 1
    for policy, parts in books.parts.items():
        assert parts[group] == "open", "a terminal part came back"
        parts[group] = "ready" if policy in brought else "absent"


def _take_drop(books: Books, policy: str, group: int, reason: str) -> None:
    state = books.parts[policy][group]
    assert state in ("open", "ready", "batched", "skipped", "absent"), f"a part dropped twice: {state}, {reason}"
    assert (state == "skipped") == (reason == "skipped") and (state != "absent" or reason in ("absent", "frozen"))
    assert state != "batched" or policy not in books.live or reason == "ended", "a batch lost a part"
    books.parts[policy][group] = f"dropped:{reason}"
    books.counts[f"dropped_{reason}"] += 1
    if all(parts[group].startswith("dropped") for parts in books.parts.values()):
        books.held.pop(group, None)


def _take_batch(books: Books, batch: r.Batched) -> None:
    trainer = books.config.trainer_of(batch.policy)
    batches = books.batches[batch.policy]
    assert batch.n == len(batches) < trainer.steps, "batches are not consecutive, or too many"
    ahead = min(books.config.dataflow.prefetch, books.config.dataflow.max_staleness)
    assert batch.n - books.consumed[batch.policy] <= ahead, "a batch is formed too early"
    assert 1 <= len(batch.groups) <= trainer.batch_size and len(set(batch.groups)) == len(batch.groups)
    if len(batch.groups) < trainer.batch_size:
        books.counts["short_batch"] += 1
    replay = books.config.dataflow.replay
    books.fresh[batch.policy].append(0)
    for i, group in enumerate(batch.groups):
        if books.parts[batch.policy][group] == "consumed":
            books.replayed[batch.policy, group] += 1
            books.counts["replayed"] += 1
            assert books.replayed[batch.policy, group] <= replay.options["max_uses"], "a part is replayed too often"
        else:
            assert books.parts[batch.policy][group] == "ready", "a batch takes a part that is not ready"
            books.parts[batch.policy][group] = "batched"
            books.fresh[batch.policy][-1] += 1
        at = batch.objects[i]
        row = (batch.paths[at], batch.stores[at], batch.hashes[at], batch.row_starts[i], batch.row_counts[i])
        brought = [parts[batch.policy] for (g, _, _), parts in books.commits.items() if g == group]
        assert (*row, batch.versions[i]) in brought, "a batch names rows that nobody committed"
        lag = batch.n - books.versions[batch.policy][batch.versions[i]][0]
        assert 0 <= lag <= books.config.dataflow.max_staleness, f"lag {lag}"
        books.counts[f"lag_{lag}"] += 1
    used = len(batch.groups) - books.fresh[batch.policy][-1]
    assert used <= int(replay.options.get("ratio", 0) * trainer.batch_size), "more is replayed than the ratio allows"
    batches.append(list(batch.groups))


# --- books -------------------------------------------------------------------------------------


def _check_books(books: Books) -> None:
    """What must hold after every decision record."""
    playing = [region for region, pools in books.pools_wanted.items() if pools and region not in books.paused]
    is_still = bool(books.paused - {r.EVERYWHERE}) and not playing
    assert is_still == (r.EVERYWHERE in books.paused), "whether anything plays is not said, or said wrongly"
    for policy, parts in books.parts.items():
        states = Counter(state.partition(":")[0] for state in parts.values())
        assert set(states) <= {"open", "ready", "batched", "consumed", "dropped"}, f"{policy}: {states}"
        if policy in books.config.trained:
            size = books.config.trainer_of(policy).batch_size
            assert states["ready"] <= (books.config.dataflow.max_staleness + 1) * size, "too many ready parts"
        else:
            assert not states["ready"], "a frozen policy keeps parts"


def _check_end(books: Books) -> None:
    for policy, parts in books.parts.items():
        left = [group for group, state in parts.items() if state != "consumed" and not state.startswith("dropped")]
        assert not left, f"parts of {policy} without an end: {left}"


def _check_progress(books: Books, records: list[r.DecisionRecord]) -> None:
    """A run that nobody stopped has trained every batch of every policy."""
    drains = [d for record in records for d in record.decisions if isinstance(d, r.DrainRequested)]
    if any(d.reason == "all policies have ended" for d in drains):
        for policy in books.config.trained:
            assert books.consumed[policy] == books.config.trainer_of(policy).steps, f"{policy} ended too early"


def _check_manifests(store: ObjectStore, keys: RunKeys, books: Books) -> None:
    for policy in books.config.trained:
        found = [json.loads(store.get(i.key)) for i in store.list(keys.weights(policy)) if "manifest" in i.key]
        assert [m["version"] for m in found] == list(range(len(found))), "versions have a gap"
        for before, after in itertools.pairwise(found):
            assert after["incarnation"] >= before["incarnation"], "an incarnation falls"
            assert after["step"] in (before["step"], before["step"] + 1), "steps jump"
            if after["step"] > before["step"]:
                assert after["batch"] == before["step"], "a batch was trained at another step than its number"
        for manifest in found:
            for n, groups in manifest.get("skipped", {}).items():
                _check_skips(books, policy, int(n), groups)
        for version, (step, digest) in books.versions[policy].items():
            assert (found[version]["step"], found[version]["digest"]) == (step, digest), "a digest nobody published"


def _check_skips(books: Books, policy: str, n: int, groups: list[int]) -> None:
    """What a manifest says was skipped is never counted as trained, whoever told the manager of it and when."""
    if n >= books.consumed[policy]:
        return
    for group in groups:
        is_replayed = group in itertools.chain.from_iterable(books.batches[policy][:n])
        state = books.parts[policy][group]
        assert is_replayed or state in ("dropped:skipped", "dropped:ended"), f"a skipped part of batch {n} is {state}"


def _check_paths(store: ObjectStore, keys: RunKeys, books: Books, records: list[r.DecisionRecord]) -> None:
    for decision in (d for record in records for d in record.decisions if isinstance(d, r.Batched)):
        for at, (path, digest) in enumerate(zip(decision.paths, decision.hashes, strict=True)):
            try:
                near = decision.stores[at]  # of the pool's region
                data = (open_store(near) if near else store).get(path)
                is_whole = digest in (hash_bytes(data), data.decode(errors="replace"))  # real, and the simulation's
            except NotFound as error:
                raise AssertionError(f"a batch names {path}, which is not there") from error
            groups = [group for group, where in zip(decision.groups, decision.objects, strict=True) if where == at]
            trained = [group for group in groups if books.parts[decision.policy][group] == "consumed"]
            assert is_whole or not trained, f"{trained} were trained on and {path} is damaged"

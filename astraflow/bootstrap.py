"""The beginning of a run: everything that can be checked is checked, then the run is written, ``run.toml`` last.

A run exists when its ``run.toml`` does. What was written before it (the problems, named by their hash) has no
meaning alone, so a start that was killed half-way leaves nothing that a second start would trip over.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence

from astraflow.component import use_code
from astraflow.config import REMOTE, Evaluation, RunConfig
from astraflow.dataflow.algorithms import load_algorithms
from astraflow.dataflow.draws import draw
from astraflow.models import check_model
from astraflow.problems import Problem, data_hash, load_problems, problems_table
from astraflow.recipe import dump_toml
from astraflow.rewards import load_reward
from astraflow.weights.region import region_store
from astraflow.workflows import load_workflow
from storage.errors import ConfigError, NotFound, in_section
from storage.keys import RunKeys
from storage.probe import check_run_store, is_same_place
from storage.store import Created, ObjectStore
from storage.tables import write_table


def create_run(store: ObjectStore, config: RunConfig) -> RunConfig:
    """Check ``config``, freeze the problems and write the run; returns the frozen config.

    Raises ``ConfigError`` if something in it can't work or the run's name is taken, ``StoreError`` if the
    store can't carry a run.
    """
    keys = RunKeys(config.name)
    frozen, problems = check_run(store, config)
    write_table(store, keys.problems(frozen.data_hash), problems_table(problems))
    for name, evaluation in frozen.evaluations.items():
        table = problems_table(_evaluated_problems(frozen, name, evaluation))
        write_table(store, keys.problems(evaluation.data_hash), table)
    # The comment makes the bytes this start's own: of two starts at once, exactly one creates the run.
    text = f"# run {config.name}, created as {uuid.uuid4().hex}\n{dump_toml(frozen)}".encode()
    if store.create(keys.config, text) is Created.EXISTED and store.get(keys.config) != text:
        raise _taken(store, keys)
    return frozen


def check_run(store: ObjectStore, config: RunConfig) -> tuple[RunConfig, list[Problem]]:
    """All checks of ``create_run``, writing nothing of the run: the config as it would be frozen, and the problems."""
    check_run_store(store)
    _check_free(store, config)
    places = {"the run": store}
    for region in sorted(config.regions):
        near = _check_region(store, config, region)
        if near is not None:
            _check_one_name(near, region, places)
            places[f"the region {region!r}"] = near
    return check_config(config)


def check_config(config: RunConfig) -> tuple[RunConfig, list[Problem]]:
    """Check what the schema can't: models, workflow, roles, rewards, problems, algorithms, losses, a pool for all."""
    use_code(config.code)
    for name, policy in config.policies.items():
        if policy.model != REMOTE:
            check_model(policy.model, key=f"policies.{name}.model")
    workflow = load_workflow(config)
    load_reward(config.problems.reward)
    needed = {config.policy_of(role) for role in workflow.roles}
    if not any(needed <= set(config.policies_of(pool)) for pool in config.pools):
        raise ConfigError(
            f"no pool serves all policies of the workflow {config.workflow.name!r}: {', '.join(sorted(needed))}",
            where="pools",
            remedy="Name them all in one pool's policies, or leave policies empty to serve all",
            kind="unplayable",
        )
    idle = [policy for policy in config.trained if policy not in needed]
    if idle:
        raise ConfigError(
            f"the workflow {config.workflow.name!r} never uses {', '.join(idle)}, so it would wait for data for ever",
            where="policies",
            remedy="Map a role to it in [workflow.roles], set frozen = true, or take it out",
            kind="idle_policy",
        )
    problems = load_problems(config.problems, config.seed)
    evaluations = {
        name: _freeze_evaluation(config, name, evaluation, workflow.roles)
        for name, evaluation in config.evaluations.items()
    }
    update = {"data_hash": data_hash(problems), "problem_count": len(problems), "evaluations": evaluations}
    frozen = config.model_copy(update=update)
    _check_curator(frozen)
    _check_losses(frozen)
    return frozen, problems


def _freeze_evaluation(config: RunConfig, name: str, evaluation: Evaluation, roles: Sequence[str]) -> Evaluation:
    load_reward(evaluation.problems.reward)
    if evaluation.role and evaluation.role not in roles:
        raise ConfigError(
            f"the workflow {config.workflow.name!r} has no role {evaluation.role!r}",
            where=f"evaluations.{name}.role",
            remedy=f"It has: {', '.join(roles)}",
            kind="unknown",
        )
    problems = _evaluated_problems(config, name, evaluation)
    return evaluation.model_copy(update={"data_hash": data_hash(problems), "problem_count": len(problems)})


def _evaluated_problems(config: RunConfig, name: str, evaluation: Evaluation) -> list[Problem]:
    """Its problems; a generator's are drawn by another seed than those of training."""
    seed = draw(config.seed, f"evaluation {name}") >> 32
    return load_problems(evaluation.problems, seed)


def _check_curator(config: RunConfig) -> None:
    """What cannot be put into a snapshot and back would stop every manager of the run at the same place."""
    curator = load_algorithms(config).curator
    try:
        curator.restore(json.loads(json.dumps(curator.state())))
    except Exception as error:
        raise ConfigError(
            f"the curator's state does not go into a snapshot and back: {type(error).__name__}: {error}",
            where="dataflow.curator.name",
            remedy="state() gives plain JSON values, and restore() takes them",
            kind="component",
        ) from error


def _check_losses(config: RunConfig) -> None:
    from astraflow.trainer.kinds import load_kind  # noqa: PLC0415 - brings torch, which flows do without until here
    from astraflow.trainer.losses import load_loss  # noqa: PLC0415

    for policy in config.trained:
        settings, key = config.trainer_of(policy), f"policies.{policy}.trainer"
        load_loss(settings.loss, key=f"{key}.loss")
        load_kind(settings, key=key)
        if settings.kind == "distill":
            check_model(settings.teacher, key=f"{key}.teacher")


def _check_region(store: ObjectStore, config: RunConfig, region: str) -> ObjectStore | None:
    """The region's own store, if it has one: it carries rows and weights, and has nothing of a run of this name."""
    where = f"regions.{region}.store"
    with in_section(where):
        near = region_store(store, config, region)
        if near is None:
            return None
        check_run_store(near)
        other = next(iter(near.list(RunKeys(config.name).root, limit=1)), None)
    if other is not None:
        raise ConfigError(
            f"the region's store has objects of a run {config.name!r}: {near.url}/{other.key}",
            where=where,
            remedy="Choose another name (name=…), give the region another prefix, or delete them",
            kind="region_taken",
        )
    return near


def _check_one_name(near: ObjectStore, region: str, places: Mapping[str, ObjectStore]) -> None:
    """A place has one URL in a run: records say by it where rows lie, and maintenance deletes what none names there."""
    where = f"regions.{region}.store"
    for owner, store in places.items():
        with in_section(where):
            is_same = store.url != near.url and is_same_place(store, near)
        if is_same:
            raise ConfigError(
                f"{near.url} is the place that {owner} calls {store.url}",
                where=where,
                remedy=f"Write one URL for both, for example {store.url}, or give the region a prefix of its own",
                kind="region_alias",
            )


def _check_free(store: ObjectStore, config: RunConfig) -> None:
    """There is no run of this name, and nothing that another root's run of this name keeps here as in its region."""
    keys = RunKeys(config.name)
    try:
        store.get_range(keys.config, 0, 1)
    except NotFound:
        pass
    else:
        raise _taken(store, keys)
    for prefix in (keys.trajectories, *map(keys.weights, sorted(config.policies))):
        found = next(iter(store.list(prefix, limit=1)), None)
        if found is not None:
            raise ConfigError(
                f"the store has objects of a run {keys.run!r} that did not begin here: {store.url}/{found.key}",
                where="name",
                remedy="It may be a region's store of another run of this name: choose another name (name=…) or prefix",
                kind="run_exists",
            )


def _taken(store: ObjectStore, keys: RunKeys) -> ConfigError:
    return ConfigError(
        f"there is a run {keys.run!r} in {store.url} already",
        where=keys.config,
        remedy=f"Choose another name (name=…), or go on with it: astraflow run --resume {keys.run}",
        kind="run_exists",
    )

"""The run's configuration: one frozen schema, from TOML with overlays and dotted overrides.

What can be derived is not configured. Unknown keys are errors. The same models are the parameters of
the Prefect flows, so each field's description is what the launch form shows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from storage.errors import ConfigError
from storage.keys import NAME

Name = Annotated[str, Field(pattern=NAME.pattern)]
Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen part of the config that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Component(Section):
    """An algorithm, workflow or reward chosen by built-in name or ``package.module:attribute``."""

    name: str = Field(description="Built-in name, or an import path 'package.module:attribute'.")
    options: dict[str, Any] = Field(default={}, description="Keyword arguments of it.")


class Problems(Section):
    """The data set: where problems come from and how an answer is scored."""

    source: str = Field(
        description="A .jsonl file (fields prompt, answer[, id, …]), or a built-in generator: 'addition'."
    )
    options: dict[str, Any] = Field(default={}, description="Options of the generator.")
    reward: Component = Field(
        default=Component(name="exact"),
        description="Scores an answer: 'exact', 'contains', 'last_number', 'shuffled', or own code 'module:attribute'.",
    )


class Sampling(Section):
    """How a policy samples."""

    temperature: float = Field(default=1.0, gt=0, description="Softmax temperature; training is exact at 1.0.")
    max_tokens: Positive = Field(default=256, description="Most tokens of one answer.")
    stop_tokens: list[str] = Field(default=[], description="Tokens that end an answer, beside the model's own eos.")


class Warmup(Section):
    """A short supervised start before RL, on demonstrations that the workflow makes from the problems."""

    until_accuracy: Fraction = Field(default=0.3, description="Stop when sampled accuracy reaches this.")
    max_steps: Positive = Field(default=600, description="Stop after this many steps in any case.")
    batch_size: Positive = Field(default=128, description="Demonstrations a step.")
    lr: float = Field(default=1e-3, gt=0, description="Learning rate of the warm-up.")


class Policy(Section):
    """One model that is trained (or served frozen) under a name."""

    model: str = Field(
        description="A Hugging Face causal-LM folder, or 'tiny-qwen3': a small random one, character tokenizer."
    )
    frozen: bool = Field(default=False, description="Serve only: no trainer, version 0 for ever.")
    sampling: Sampling = Field(default=Sampling(), description="How it samples.")
    warmup: Warmup | None = Field(default=None, description="Supervised start before RL; none by default.")
    trainer: dict[str, Any] = Field(default={}, description="Fields of [trainer] that differ for this policy.")


class Workflow(Component):
    """The workflow and who plays its roles."""

    name: str = Field(default="solve", description="'solve', 'solve_and_verify', or 'package.module:attribute'.")
    roles: dict[str, str] = Field(
        default={}, description="Role -> policy. A role that is not listed maps to the policy of its name."
    )
    episode_timeout_s: float = Field(default=600, gt=0, description="Deadline of one episode.")


class Dataflow(Section):
    """What the manager does: leases, admission, staleness, batches."""

    group_size: Positive = Field(default=8, description="Episodes of one problem that are leased together.")
    max_staleness: int = Field(default=2, ge=0, description="Largest lag (trainer steps) of any trained token.")
    prefetch: Positive = Field(default=1, description="Batches that are ready while one trains (≤ max_staleness).")
    curator: Component = Field(
        default=Component(name="shuffled"),
        description="Next problem: shuffled, sequential, curriculum, filter_solved, greso.",
    )
    filters: list[Component] = Field(
        default=[], description="Parts kept: zero_advantage, overlong, failed; in this order."
    )
    order: Component = Field(default=Component(name="edf"), description="First ready part: edf, fifo, lifo.")
    replay: Component = Field(
        default=Component(name="none"), description="Consumed parts again: none, latest, uniform, prioritized."
    )
    max_redraw: Positive = Field(
        default=8, description="After this many times batch_size filtered parts, a short batch is emitted."
    )
    coupling: Literal["none", "slowest"] = Field(
        default="none", description="'slowest' makes all policies share the gate of the slowest one."
    )
    max_attempts: Positive = Field(default=3, description="Leases of one group before it is dropped as failed.")
    group_timeout_s: float = Field(default=1800, gt=0, description="A lease older than this is leased again.")
    silence_s: float = Field(default=60, gt=0, description="A pool without a beat for this long loses its leases.")
    drain_s: float = Field(default=20, gt=0, description="Time a drained participant has to finish or hand back.")
    report_every: Positive = Field(default=10, description="Steps between two load reports.")
    snapshot_every: Positive = Field(default=500, description="Decision records between two snapshots.")


class Trainer(Section):
    """How a policy trains. A policy may override fields in [policies.NAME.trainer]."""

    kind: str = Field(default="rl", description="'rl', or an import path.")
    steps: Positive = Field(default=400, description="Optimizer steps of the run.")
    batch_size: Positive = Field(default=32, description="Parts (groups) a step.")
    lr: float = Field(default=1e-6, gt=0, description="Peak learning rate of AdamW.")
    lr_warmup_steps: int = Field(default=0, ge=0, description="Linear warm-up of the learning rate.")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW betas.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW weight decay.")
    grad_clip: float = Field(default=1.0, gt=0, description="Largest gradient norm.")
    loss: Component = Field(
        default=Component(name="grpo"), description="grpo, gspo, cispo, or own code 'module:attribute'."
    )
    advantage: Literal["mean_std", "mean"] = Field(default="mean_std", description="Group baseline, and scale.")
    aggregate: Literal["token", "sequence", "constant"] = Field(default="token", description="Mean of the loss.")
    micro_batch_tokens: Positive = Field(default=16384, description="Padded tokens of one forward pass.")
    checkpoint_every: Positive = Field(default=50, description="Steps between two checkpoints.")
    keep_checkpoints: Positive = Field(default=2, description="Complete checkpoints that are kept.")
    anchor_every: Positive = Field(default=64, description="Versions between two full snapshots of the weights.")
    threads: Positive = Field(default=1, description="Torch CPU threads.")
    batch_timeout_s: float = Field(default=3600, gt=0, description="Longest wait for a batch before the trainer fails.")


class Weights(Section):
    """How published weights are written."""

    coding: Literal["default", "classes"] = Field(
        default="default",
        description="'classes': a third fewer bytes for slow links; more work, not merged, leads only forward.",
    )
    merge_every: list[Positive] = Field(
        default=[8, 64], description="Lengths of merged deltas, for readers that are many versions behind; [] for none."
    )


class Region(Section):
    """A place where pools run: with a bucket of its own, with machines of its own, or with both."""

    store: str | None = Field(
        default=None,
        description="The region's store: s3://bucket/prefix, file:// or a folder. A mirror copies each version there "
        "once, and the region's pools read them there. None: they read the run's store.",
    )
    work_pool: str | None = Field(
        default=None,
        description="The Prefect work pool whose workers start the region's flows, from the queue of the region's "
        "name. None: the runner of `astraflow up` starts them.",
    )
    mirror_timeout_s: float = Field(
        default=30.0, gt=0, description="Without anything new in the region's store for this long, pools ask the run's."
    )


class Pool(Section):
    """One RaaS pool: engines of some policies in one region."""

    engine: str = Field(default="transformers", description="'transformers'.")
    region: Name = Field(default="local", description="Where it runs.")
    policies: list[str] = Field(default=[], description="Policies it serves; empty: all.")
    capacity: Positive = Field(default=64, description="Groups in flight.")
    max_batch: Positive = Field(default=256, description="Sequences an engine decodes at once.")
    update: Literal["continue", "finish", "abort"] = Field(
        default="continue", description="What running generations do when weights change."
    )
    threads: Positive = Field(default=1, description="Torch CPU threads.")
    copy_folder: str | None = Field(
        default=None, description="Keeps the weights over a restart of the pool; best on tmpfs: /dev/shm/astraflow."
    )
    flush_s: float | None = Field(default=None, ge=0, description="Group commit: 0 locally, 5 on S3 by default.")


class RunConfig(Section):
    """One run: everything that a recipe says."""

    name: Name = Field(description="The run's name: its folder in the store.")
    store: str = Field(default=".astraflow/store", description="A folder, file:// or s3://bucket/prefix.")
    seed: int = Field(default=0, description="All draws derive from it.")
    policies: dict[Name, Policy] = Field(min_length=1, description="The models.")
    workflow: Workflow = Field(default=Workflow(), description="How an episode is played.")
    problems: Problems = Field(description="The data set.")
    dataflow: Dataflow = Field(default=Dataflow(), description="Leases, staleness, batches.")
    trainer: Trainer = Field(default=Trainer(), description="Defaults of all policies' trainers.")
    weights: Weights = Field(default=Weights(), description="How published weights are written.")
    regions: dict[Name, Region] = Field(default={}, description="Regions with a store of their own, by name.")
    pools: dict[Name, Pool] = Field(default={"local": Pool()}, min_length=1, description="Rollout pools.")
    code: list[str] = Field(
        default=[],
        description="Folders of own modules, for every process of the run. A recipe that names own code: its folder.",
    )
    data_hash: str = Field(default="", description="Set when the run is created: the frozen problems.")
    problem_count: int = Field(default=0, ge=0, description="Set when the run is created.")

    @model_validator(mode="after")
    def _references_exist(self) -> Self:
        known = ", ".join(sorted(self.policies))
        for role, policy in self.workflow.roles.items():
            if policy not in self.policies:
                raise ValueError(f"workflow.roles.{role} names the policy {policy!r}; there are: {known}")
        for name, pool in self.pools.items():
            for policy in pool.policies:
                if policy not in self.policies:
                    raise ValueError(f"pools.{name}.policies names {policy!r}; there are: {known}")
        for policy in self.policies:
            trainer = self.trainer_of(policy)
            if trainer.loss.name == "":
                raise ValueError(f"policies.{policy}.trainer.loss has no name")
        if self.dataflow.prefetch > max(1, self.dataflow.max_staleness):
            raise ValueError("dataflow.prefetch must not be above dataflow.max_staleness")
        if all(policy.frozen for policy in self.policies.values()):
            raise ValueError("every policy is frozen: nothing would be trained")
        return self

    def trainer_of(self, policy: str) -> Trainer:
        """The trainer section of a policy: [trainer] with that policy's overrides."""
        override = self.policies[policy].trainer
        if not override:
            return self.trainer
        try:
            return Trainer.model_validate({**self.trainer.model_dump(), **override})
        except ValidationError as error:
            fields = "; ".join(
                f"policies.{policy}.trainer.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise ValueError(fields) from error

    def policies_of(self, pool: str) -> list[str]:
        """Policies a pool serves, in name order."""
        return sorted(self.pools[pool].policies or self.policies)

    @property
    def trained(self) -> list[str]:
        """Policies that have a trainer, in name order."""
        return sorted(name for name, policy in self.policies.items() if not policy.frozen)

    def policy_of(self, role: str) -> str:
        """The policy that plays a role. Raises ``ConfigError`` if there is none."""
        policy = self.workflow.roles.get(role, role)
        if policy not in self.policies:
            raise ConfigError(
                f"role {role!r} has no policy",
                where="workflow.roles",
                remedy=f"Add workflow.roles.{role} = one of: {', '.join(sorted(self.policies))}",
            )
        return policy

"""The run's configuration: one frozen schema, from TOML with overlays and dotted overrides.

What can be derived is not configured. Unknown keys are errors. The same models are the parameters of
the Prefect flows, so each field's description is what the launch form shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from storage.errors import ConfigError
from storage.keys import NAME

Name = Annotated[str, Field(pattern=NAME.pattern)]
Positive = Annotated[int, Field(ge=1)]
REMOTE = "remote"
"""The model of a policy that is only an address: a judge behind an OpenAI-compatible API."""
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
        description="A .jsonl file (fields prompt, answer[, id, …]), a built-in generator: 'addition', or "
        "'package.module:function' of one's own."
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
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus: the likeliest tokens of this mass; 1: all.")
    top_k: int = Field(default=0, ge=0, description="Only the k likeliest tokens; 0: all.")
    min_p: float = Field(default=0.0, ge=0, lt=1, description="Only tokens of this share of the likeliest one; 0: all.")
    stop: list[str] = Field(default=[], description="Texts that end an answer; they are kept in it.")


class Warmup(Section):
    """A short supervised start before RL, on demonstrations that the workflow makes from the problems."""

    until_accuracy: Fraction = Field(default=0.3, description="Stop when sampled accuracy reaches this.")
    max_steps: Positive = Field(default=600, description="Stop after this many steps in any case.")
    batch_size: Positive = Field(default=128, description="Demonstrations a step.")
    lr: float = Field(default=1e-3, gt=0, description="Learning rate of the warm-up.")


class Policy(Section):
    """One model that is trained (or served frozen) under a name."""

    model: str = Field(
        description="A Hugging Face causal-LM folder; 'tiny-qwen3': a small random one, character tokenizer; "
        "'remote': a frozen judge behind an API (pools.….servers)."
    )
    frozen: bool = Field(default=False, description="Serve only: no trainer, version 0 for ever.")
    sampling: Sampling = Field(default=Sampling(), description="How it samples.")
    tools: str = Field(
        default="hermes", description="How it writes tool calls: 'hermes', 'llama', 'none', import path."
    )
    warmup: Warmup | None = Field(default=None, description="Supervised start before RL; none by default.")
    trainer: dict[str, Any] = Field(default={}, description="Fields of [trainer] that differ for this policy.")


class Workflow(Component):
    """The workflow and who plays its roles."""

    name: str = Field(default="solve", description="'solve', 'solve_and_verify', or 'package.module:attribute'.")
    roles: dict[str, str] = Field(
        default={}, description="Role -> policy. A role that is not listed maps to the policy of its name."
    )
    episode_timeout_s: float = Field(default=600, gt=0, description="Deadline of one episode.")
    turn_timeout_s: float | None = Field(default=None, gt=0, description="Deadline of one answer; none by default.")


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


class ReferenceKl(Section):
    """A pull towards the policy as it was at the run's start (its version 0)."""

    weight: float = Field(gt=0, description="What the estimate is multiplied by: 0.001 to 0.1.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k3", description="Of KL(policy ‖ reference) from sampled tokens: k1 d, k2 d²/2, k3 exp(-d) - 1 + d."
    )


class Overlong(Section):
    """DAPO's soft penalty on long answers, taken off the reward before the advantage."""

    max_tokens: Positive = Field(description="From this many sampled tokens on, the whole penalty.")
    buffer_tokens: Positive = Field(description="Over so many tokens before that it grows from 0.")
    penalty: float = Field(default=1.0, gt=0, description="The whole penalty.")


class Lora(Section):
    """Train low-rank adapters instead of the weights; what is published is the model with them merged in."""

    rank: Positive = Field(default=16, description="Rank of the adapters.")
    alpha: float = Field(default=32.0, gt=0, description="They are scaled by alpha / rank.")
    targets: list[str] = Field(default=[], description="Names of the modules; empty: every linear layer but the head.")


class Trainer(Section):
    """How a policy trains. A policy may override fields in [policies.NAME.trainer]."""

    kind: str = Field(default="rl", description="'rl', 'sft', 'distill', or an import path.")
    steps: Positive = Field(default=400, description="Optimizer steps of the run.")
    batch_size: Positive = Field(default=32, description="Parts (groups) a step.")
    lr: float = Field(default=1e-6, gt=0, description="Peak learning rate of AdamW.")
    lr_warmup_steps: int = Field(default=0, ge=0, description="Linear warm-up of the learning rate.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="After the warm-up: constant, or down to lr_min_share at the last step."
    )
    lr_min_share: Fraction = Field(default=0.0, description="Share of lr at the last step of a falling schedule.")
    betas: tuple[float, float] = Field(default=(0.9, 0.999), description="AdamW betas.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW weight decay.")
    grad_clip: float = Field(default=1.0, gt=0, description="Largest gradient norm.")
    loss: Component = Field(
        default=Component(name="grpo"),
        description="grpo, gspo, cispo, decoupled, tis, icepop, m2po, or own code 'module:attribute'.",
    )
    kl: ReferenceKl | None = Field(default=None, description="Pull towards version 0; none by default.")
    advantage: Literal["mean_std", "mean"] = Field(default="mean_std", description="Group baseline, and scale.")
    advantage_within: Literal["part", "role", "slot"] = Field(
        default="part", description="Whose rewards make a baseline: all of the part, those of a role, of a role's slot."
    )
    normalise_batch: bool = Field(default=False, description="Divide all advantages by their spread in the batch.")
    overlong: Overlong | None = Field(default=None, description="Penalty on long answers; none by default.")
    teacher: str = Field(default="", description="kind = 'distill': the teacher's Hugging Face causal-LM folder.")
    aggregate: Literal["token", "sequence", "constant"] = Field(default="token", description="Mean of the loss.")
    minibatches: Positive = Field(default=1, description="Optimizer updates that a batch is divided into.")
    micro_batch_tokens: Positive = Field(default=16384, description="Tokens of one forward pass, padding counted.")
    packing: Literal["padded", "packed"] = Field(
        default="padded", description="'packed': sequences behind each other in one row, no padding is computed."
    )
    compute: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Arithmetic of forward and backward; master weights are always float32."
    )
    gradient_checkpointing: bool = Field(default=False, description="Compute layers twice to hold less memory.")
    lora: Lora | None = Field(default=None, description="Train low-rank adapters only; none by default.")
    hardware: Name | None = Field(
        default=None, description="Kind of machine, as `astraflow deploy` knows it; none: any."
    )
    ranks: Positive = Field(default=1, description="Processes that share the model (FSDP2), started by torchrun.")
    trackers: list[Literal["tensorboard", "wandb"]] = Field(
        default=[], description="Who else is told each step's figures: 'tensorboard', 'wandb' (extras of the package)."
    )
    non_finite: Literal["skip", "stop"] = Field(
        default="skip", description="A loss or gradient that is not finite: leave the step out, or end the trainer."
    )
    checkpoint_every: Positive = Field(default=50, description="Steps between two checkpoints.")
    keep_checkpoints: Positive = Field(default=2, description="Complete checkpoints that are kept.")
    anchor_every: Positive = Field(default=64, description="Versions between two full snapshots of the weights.")
    threads: Positive = Field(default=1, description="Torch CPU threads.")
    batch_timeout_s: float = Field(default=3600, gt=0, description="Longest wait for a batch before the trainer fails.")


class Evaluation(Section):
    """Problems that are played beside training and never trained on, with the newest weights."""

    problems: Problems = Field(description="The data set and how an answer of it is scored.")
    repeats: Positive = Field(default=1, description="Plays of each problem: the k of avg@k and pass@k.")
    every: int = Field(default=0, ge=0, description="Versions between two rounds; 0: only at the start and the end.")
    at_start: bool = Field(default=True, description="A round with version 0.")
    at_end: bool = Field(default=True, description="A round with the last version, before the run ends.")
    role: str = Field(default="", description="Its last answer is what is scored; empty: the workflow's first role.")
    part: str = Field(
        default="",
        description="Score a named part of that answer's reward, 0 where it has none: final of solve_and_select, say.",
    )
    temperature: float | None = Field(
        default=None, ge=0, description="Sampling temperature; 0 is greedy; none: each policy's own."
    )
    pass_score: float = Field(default=1.0, description="An answer with at least this score passes (pass@k).")
    timeout_s: float = Field(default=600, gt=0, description="A round that takes longer is reported as far as it came.")
    data_hash: str = Field(default="", description="Set when the run is created: the frozen problems.")
    problem_count: int = Field(default=0, ge=0, description="Set when the run is created.")


class Weights(Section):
    """How published weights are written."""

    coding: Literal["default", "classes"] = Field(
        default="default",
        description="'classes': a third fewer bytes for slow links; more work, and single deltas lead only forward.",
    )
    merge_every: list[Positive] = Field(
        default=[8, 64], description="Lengths of merged deltas, for readers that are many versions behind; [] for none."
    )


class Region(Section):
    """A place where pools run: with a bucket of its own, with machines of its own, or with both."""

    store: str | None = Field(
        default=None,
        description="The region's store: s3://bucket/prefix, file:// or a folder. A mirror copies each version there "
        "once, the region's pools read them there and write their trajectories there. None: they use the run's store.",
    )
    work_pool: str | None = Field(
        default=None,
        description="The Prefect work pool whose workers start the region's flows, from the queue of the region's "
        "name. None: the runner of `astraflow up` starts them.",
    )
    mirror_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Without anything new in the region's store for this long, pools ask the run's; what cannot be "
        "written there for so long goes to the run's.",
    )
    start_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="A flow run of the region that is silent for so long from the start is asked for again: more, "
        "where machines are made and images pulled first.",
    )
    cost: float = Field(
        default=1.0,
        ge=0,
        description="Of a pool and hour, in any currency: cheap regions grow first, dear ones shrink.",
    )
    most_pools: int | None = Field(default=None, ge=0, description="Most pools that load reports may start there.")


class Scale(Section):
    """How many pools a run has: as the config says, or as its load reports ask for."""

    mode: Literal["off", "advise", "act"] = Field(
        default="off", description="'advise': load reports say how many there should be; 'act': so many are run."
    )
    rule: Literal["matched", "three_zone"] = Field(
        default="matched", description="By how full pools are and how much is waited, or by what is waited alone."
    )
    low: Fraction = Field(default=0.05, description="three_zone: a trainer that waits less may lose pools.")
    high: Fraction = Field(default=0.10, description="three_zone: one that waits more gets some.")
    headroom: float = Field(default=1.10, ge=1, description="three_zone: how much more than consumed is produced.")
    least: Positive = Field(default=1, description="Fewest pools of the run.")
    most: Positive = Field(default=16, description="Most pools of the run.")
    cool_down: int = Field(default=20, ge=0, description="Steps after a change before the next one.")


class Serving(Section):
    """A pool's HTTP server, for agent harnesses outside of it."""

    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all of the machine's.")
    port: int = Field(default=0, ge=0, le=65535, description="Port to listen on; 0: any.")
    public_host: str = Field(default="", description="The name by which harnesses elsewhere reach it.")
    key_env: str = Field(
        default="ASTRAFLOW_SERVE_KEY",
        description="Environment variable with the pool's key: takes episodes, and asks the engines beside training.",
    )
    max_requests: Positive = Field(default=512, description="Requests served at once; more are told to come again.")
    at_start: bool = Field(default=False, description="Listen from the beginning, not when first needed.")


class Server(Section):
    """An inference server that plays a policy: one that runs at ``url``, or one that the pool starts and ends."""

    url: str = Field(default="", description="Where it runs: 'http://host:8000'. Such a server plays frozen policies.")
    command: list[str] = Field(
        default=[], description="Starts it; {python}, {model} (the folder), {name} and {port} are put in."
    )
    dialect: Literal["vllm", "generate", "sglang", "chat"] = Field(
        default="vllm",
        description="'vllm': /v1/completions with token ids; 'generate': /inference/v1/generate, also of other pools; "
        "'sglang': its native route; 'chat': any OpenAI-compatible server, text only, for remote judges.",
    )
    model: str = Field(default="", description="The name that it knows the model by; by default the policy's.")
    key_env: str = Field(default="", description="Environment variable that holds its bearer token.")
    timeout_s: float = Field(default=600, gt=0, description="Longest wait for an answer, repetitions included.")
    start_timeout_s: float = Field(default=600, gt=0, description="Longest wait until it is ready.")

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.url) == bool(self.command):
            raise ValueError("a server has either a url or a command")
        return self


class Pool(Section):
    """One RaaS pool: engines of some policies in one region."""

    engine: str = Field(default="transformers", description="'transformers' or 'vllm'.")
    options: dict[str, Any] = Field(
        default={}, description="Settings of the engine; for vllm its engine arguments: tensor_parallel_size, …"
    )
    region: Name = Field(default="local", description="Where it runs.")
    hardware: Name | None = Field(
        default=None, description="Kind of machine in its region, as `astraflow deploy` knows it; none: any."
    )
    policies: list[str] = Field(default=[], description="Policies it serves; empty: all.")
    capacity: Positive = Field(default=64, description="Groups in flight.")
    max_batch: Positive = Field(default=256, description="Sequences an engine decodes at once.")
    update: Literal["continue", "finish", "abort"] = Field(
        default="continue", description="What running generations do when weights change."
    )
    kv: Literal["keep", "recompute"] = Field(
        default="keep", description="KV cache of generations that go on: as the old weights made it, or made again."
    )
    threads: Positive = Field(default=1, description="Torch CPU threads.")
    copy_folder: str | None = Field(
        default=None, description="Keeps the weights over a restart of the pool; best on tmpfs: /dev/shm/astraflow."
    )
    flush_s: float | None = Field(default=None, ge=0, description="Group commit: 0 locally, 5 on S3 by default.")
    serve: Serving = Field(default=Serving(), description="Its HTTP server, for agent harnesses.")
    servers: dict[Name, Server] = Field(
        default={}, description="Policy -> inference server that plays it, in place of the engine."
    )


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
    evaluations: dict[Name, Evaluation] = Field(default={}, description="What is evaluated beside training, by name.")
    weights: Weights = Field(default=Weights(), description="How published weights are written.")
    regions: dict[Name, Region] = Field(default={}, description="Regions with a store of their own, by name.")
    pools: dict[Name, Pool] = Field(default={"local": Pool()}, min_length=1, description="Rollout pools.")
    scale: Scale = Field(default=Scale(), description="How many pools there are as the run goes.")
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
            if trainer.lora is not None and trainer.ranks > 1:
                raise ValueError(f"policies.{policy}.trainer: lora is for one rank; a model that fits needs no more")
        if self.dataflow.prefetch > max(1, self.dataflow.max_staleness):
            raise ValueError("dataflow.prefetch must not be above dataflow.max_staleness")
        if all(policy.frozen for policy in self.policies.values()):
            raise ValueError("every policy is frozen: nothing would be trained")
        if self.scale.least > self.scale.most:
            raise ValueError("scale.least must not be above scale.most")
        if self.scale.low > self.scale.high:
            raise ValueError("scale.low must not be above scale.high")
        return self

    @model_validator(mode="after")
    def _servers_fit(self) -> Self:
        remote = {name for name, policy in self.policies.items() if policy.model == REMOTE}
        for policy in sorted(remote):
            if not self.policies[policy].frozen:
                raise ValueError(f"policies.{policy}: a remote model cannot be trained: set frozen = true")
        for name, pool in self.pools.items():
            served = set(self.policies_of(name))
            if len(set(pool.policies)) != len(pool.policies):
                raise ValueError(f"pools.{name}.policies names a policy twice")
            if strange := sorted(pool.servers.keys() - served):
                raise ValueError(f"pools.{name}.servers.{strange[0]}: the pool does not serve that policy")
            if missing := sorted((served & remote) - pool.servers.keys()):
                raise ValueError(f"pools.{name}.servers.{missing[0]} must say where the remote model is")
            for policy, server in pool.servers.items():
                if (server.dialect == "chat") != (policy in remote):
                    raise ValueError(
                        f"pools.{name}.servers.{policy}: 'chat' is the dialect of remote models, and only it"
                    )
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

    def with_ranks(self, ranks: Mapping[str, int]) -> RunConfig:
        """The same run with so many processes for the trainers of these policies; nothing else may be said again."""
        changed = {
            name: policy.model_copy(update={"trainer": {**(policy.trainer or {}), "ranks": ranks[name]}})
            for name, policy in self.policies.items()
            if ranks.get(name, self.trainer_of(name).ranks) != self.trainer_of(name).ranks
        }
        return RunConfig.model_validate({**self.model_dump(), "policies": {**self.policies, **changed}})

    def policies_of(self, pool: str) -> list[str]:
        """Policies a pool serves, in name order."""
        return sorted(self.pools[pool].policies or self.policies)

    @property
    def pools_of_regions(self) -> dict[str, list[str]]:
        """Names of the pool sections of each region, both in the config's order."""
        found: dict[str, list[str]] = {}
        for name, pool in self.pools.items():
            found.setdefault(pool.region, []).append(name)
        return found

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

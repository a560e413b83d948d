"""What a simulated run meets: lengths, hardware, joins, deaths, partitions, faults. All of it is drawn or listed here.

A recipe says what is trained on what terms; a scenario says on what machines and with what luck. Every number has a
unit and a default, and the report repeats them all, so a figure can always be traced to what it assumes.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from astraflow.config import Fraction, Name, Positive, Section
from storage.errors import ConfigError

Seconds = float


class Lengths(Section):
    """Tokens of one answer: log-normal, so that a few are many times as long as most; cut at max_tokens."""

    median: float | None = Field(
        default=None, gt=0, description="Half of the answers are shorter; none: an eighth of the policy's max_tokens."
    )
    sigma: float = Field(default=0.9, ge=0, description="Spread of the logarithm; the mean is median·exp(sigma²/2).")
    growth: list[Annotated[float, Field(gt=0)]] = Field(
        default=[1.0],
        min_length=1,
        description="What the median is multiplied by as training goes on: points evenly over the policy's steps, with "
        "straight lines between.",
    )

    def of(self, max_tokens: int) -> LengthLaw:
        """The law of a policy whose answers are cut at ``max_tokens``."""
        median = self.median if self.median is not None else max_tokens / 8
        return LengthLaw(median, self.sigma, max_tokens, tuple(self.growth))


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """``Lengths`` with nothing left open: round(median · exp(sigma · N(0, 1))), at least 1, at most ``most``."""

    median: float
    sigma: float
    most: int
    growth: tuple[float, ...] = (1.0,)

    def draw(self, rng: random.Random, progress: float = 0.0) -> int:
        """One length, when that share of the policy's steps is done."""
        median = self.median * self.grown(progress)
        return max(1, min(self.most, round(median * rng.lognormvariate(0.0, self.sigma))))

    def grown(self, progress: float) -> float:
        """``growth`` at a place between 0 and 1."""
        at = max(0.0, min(1.0, progress)) * (len(self.growth) - 1)
        first = min(int(at), max(0, len(self.growth) - 2))
        last = min(first + 1, len(self.growth) - 1)
        return self.growth[first] + (at - first) * (self.growth[last] - self.growth[first])


class EngineModel(Section):
    """How fast one engine decodes: a step of n sequences takes ``step_s + n · sequence_s``."""

    step_s: Seconds = Field(default=0.02, gt=0, description="A decode step of a nearly empty batch.")
    sequence_s: Seconds = Field(default=0.00005, ge=0, description="What each sequence in the batch adds to it.")
    slots: Positive = Field(default=256, description="Sequences decoded at once; others queue.")


class TrainerModel(Section):
    """How long a step takes: ``step_s + tokens · token_s``, then ``publish_s``."""

    step_s: Seconds = Field(default=5.0, ge=0, description="A step without tokens.")
    token_s: Seconds = Field(default=0.0, ge=0, description="What each trained response token adds.")
    publish_s: Seconds = Field(default=1.0, ge=0, description="Writing a version.")
    gpus: float = Field(default=1.0, ge=0, description="Counted in the GPU-hours while the policy trains.")
    dies_at_s: list[Seconds] = Field(default=[], description="Its process is gone; another one starts.")
    restart_s: Seconds = Field(default=60.0, ge=0, description="Until the next life has loaded its checkpoint.")


class PoolPlan(Section):
    """``count`` equal pools, and what becomes of them."""

    pool: str = Field(default="", description="The recipe's pool section; empty: its first.")
    count: Positive = Field(default=1, description="How many of them.")
    region: Name = Field(default="local", description="Where they are.")
    gpus: float = Field(default=1.0, ge=0, description="GPUs of each, counted while it lives.")
    speed: float = Field(default=1.0, gt=0, description="Its engines' speed against the engine model.")
    joins_at_s: Seconds = Field(default=0.0, ge=0, description="When it starts.")
    starts_in_s: Seconds = Field(default=0.0, ge=0, description="From its start to its first look at the store.")
    dies_at_s: Seconds | None = Field(default=None, description="Its process is gone, without a word.")
    drains_at_s: Seconds | None = Field(default=None, description="It is asked to leave.")
    away: list[tuple[Seconds, Seconds]] = Field(default=[], description="Spans in which it cannot reach the store.")


class Network(Section):
    """What lies between the participants."""

    hop_s: Seconds = Field(default=0.1, ge=0, description="From an append to its being read, ± half of it.")
    upload_s: Seconds = Field(default=0.2, ge=0, description="Writing the objects of a commit.")
    transfer_s: Seconds = Field(default=1.0, ge=0, description="From a version's being there to its being applied.")
    faults: Fraction = Field(default=0.0, description="Share of requests whose request or answer is lost or late.")
    beat_s: Seconds = Field(default=15.0, gt=0, description="Between two beats; at most a quarter of silence_s.")


class Scenario(Section):
    """The world of one simulated run."""

    seed: int = Field(default=0, description="Every draw derives from it and the recipe's seed.")
    lengths: Lengths = Field(default=Lengths(), description="Tokens of an answer.")
    policies: dict[Name, Lengths] = Field(default={}, description="Lengths of single policies' answers.")
    prompt_tokens: Positive = Field(default=200, description="Tokens of a prompt.")
    rounds: Positive = Field(default=1, description="Most rounds of an episode; in each, every policy speaks once.")
    retry: Fraction = Field(default=0.0, description="Chance that another round follows.")
    environment_s: Seconds = Field(default=0.0, ge=0, description="Mean time outside the engines after an answer.")
    spread: float = Field(
        default=0.7,
        gt=0,
        description="Problems' success rates are Beta(spread, spread): below 1, many are easy or hard.",
    )
    failures: Fraction = Field(default=0.0, description="Share of groups that fail in their environment.")
    problems: Positive = Field(default=1000, description="Size of the data set.")
    engine: EngineModel = Field(default=EngineModel(), description="One engine a policy and pool.")
    trainer: TrainerModel = Field(default=TrainerModel(), description="Every policy's trainer.")
    network: Network = Field(default=Network(), description="Hops, uploads, transfers, faults.")
    pools: list[PoolPlan] = Field(default=[], description="The pools; empty: one of each of the recipe's.")
    manager_dies_at_s: list[Seconds] = Field(default=[], description="The manager is gone; another one starts.")
    manager_restart_s: Seconds = Field(default=10.0, ge=0, description="Until the next one folds the logs.")
    sharing: Literal["own", "all"] = Field(
        default="own", description="'own': an engine a policy in each pool; 'all': the policies share one."
    )
    limit_h: float = Field(default=10_000.0, gt=0, description="Virtual hours after which the run is given up.")

    def law_of(self, policy: str, max_tokens: int) -> LengthLaw:
        """How long a policy's answers are."""
        return self.policies.get(policy, self.lengths).of(max_tokens)


def load_scenario(file: str | Path | None, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario file (or none) with ``key=value`` overrides, dotted. Raises ``ConfigError``."""
    table = _read(Path(file)) if file is not None else {}
    for override in overrides:
        _lay_over(table, override)
    try:
        return Scenario.model_validate(table)
    except ValidationError as error:
        what = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(
            what, where=str(file or "world.…"), remedy="docs/simulation.md lists the fields", kind="scenario"
        ) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}", where=str(file), remedy="A scenario is a UTF-8 TOML file", kind="scenario"
        ) from error


def _lay_over(table: dict[str, Any], override: str) -> None:
    key, _, text = override.partition("=")
    *path, last = key.strip().split(".")
    try:
        for part in path:
            table = table.setdefault(part, {})
        table[last] = tomllib.loads(f"x = {text}")["x"]
    except (AttributeError, TypeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{override!r} is not an override of a scenario",
            where="command line",
            remedy="Write key=value with a TOML value, as in world.lengths.sigma=1.2",
            kind="override",
        ) from error

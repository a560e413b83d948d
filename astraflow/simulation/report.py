"""What a simulated run came to, with all that it assumed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from astraflow.simulation.scenario import LengthLaw

if TYPE_CHECKING:
    from astraflow.simulation.pool import VirtualPool
    from astraflow.simulation.world import World

QUANTILES = (0.5, 0.9, 0.99, 0.999)
SAMPLES = 20_000
"""Answers drawn to publish a distribution's quantiles as they are after the cut."""


@dataclass(slots=True)
class PolicyFigures:
    """One policy's steps."""

    steps: int = 0
    wait_s: float = 0.0
    step_s: float = 0.0
    publish_s: float = 0.0
    first_wait_s: float = 0.0
    tokens: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    wait_shares: float = 0.0  # summed over the steps but the first

    def add_step(self, lags: list[int], tokens: int, metrics: dict[str, float]) -> None:
        """Count one step; the first wait is the run's start, not a stall."""
        if self.steps == 0:
            self.first_wait_s = metrics["wait_s"]
        else:
            self.wait_s += metrics["wait_s"]
            self.wait_shares += metrics["wait_s"] / max(1e-9, sum(metrics.values()))
        self.step_s += metrics["step_s"]
        self.publish_s += metrics["publish_s"]
        self.steps += 1
        self.tokens += tokens
        self.lags.update(lags)

    @property
    def wait_ratio(self) -> float:
        """Share of the time between its first batch and its last publish in which the trainer had no batch."""
        whole = self.wait_s + self.step_s + self.publish_s
        return self.wait_s / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one run. Times are virtual seconds, hours where they say so."""

    wall_s: float
    steps: int
    episodes: int
    trajectories: int
    tokens: int
    wait_ratio: float
    iteration_s: float
    gpu_h: float
    pool_gpu_h: float
    policies: dict[str, dict[str, Any]]
    pools: list[dict[str, Any]]
    lengths: dict[str, dict[str, float]]
    deaths: dict[str, int]
    records: int
    scenario: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def make_report(world: World) -> Report:
    """The report of a world whose run is over."""
    figures = list(world.figures.values())
    waits = sum(f.wait_s for f in figures)
    whole = sum(f.wait_s + f.step_s + f.publish_s for f in figures)
    pool_gpu_s = sum(pool.plan.gpus * pool.life_s for pool in world.pools)
    steps = max((f.steps for f in figures), default=0)
    first_s = min((f.first_wait_s for f in figures), default=0.0)
    return Report(
        wall_s=round(world.ended_at, 3),
        steps=steps,
        episodes=sum(pool.episodes for pool in world.pools),
        trajectories=sum(pool.trajectories for pool in world.pools),
        tokens=sum(pool.tokens for pool in world.pools),
        wait_ratio=round(waits / whole, 6) if whole else 0.0,
        iteration_s=round((world.ended_at - first_s) / steps, 4) if steps else 0.0,
        gpu_h=round((pool_gpu_s + world.trainer_gpu_s) / 3600, 4),
        pool_gpu_h=round(pool_gpu_s / 3600, 4),
        policies={name: _policy(world, name) for name in world.figures},
        pools=[_pool(pool) for pool in world.pools],
        lengths={policy: describe(world.laws[policy]) for policy in world.speakers},
        deaths=dict(sorted(world.deaths.items())),
        records=world.records,
        scenario=world.scenario.model_dump(mode="json"),
    )


def _policy(world: World, name: str) -> dict[str, Any]:
    figures = world.figures[name]
    parts = sum(figures.lags.values())
    return {
        "steps": figures.steps,
        "wait_ratio": round(figures.wait_ratio, 6),
        "wait_share_mean": round(figures.wait_shares / max(1, figures.steps - 1), 6),  # of a step, steps alike
        "first_batch_s": round(figures.first_wait_s, 3),
        "step_s_mean": round(figures.step_s / max(1, figures.steps), 4),
        "trained_tokens": figures.tokens,
        "lag_mean": round(sum(lag * count for lag, count in figures.lags.items()) / max(1, parts), 4),
        "lag_histogram": {str(lag): count for lag, count in sorted(figures.lags.items())},
        "dropped": dict(sorted(world.dropped(name).items())),
    }


def _pool(pool: VirtualPool) -> dict[str, Any]:
    return {
        "pool": pool.name,
        "region": pool.plan.region,
        "speed": pool.plan.speed,
        "joined_s": round(pool.born_s, 3),
        "gone_s": None if pool.gone_s is None else round(pool.gone_s, 3),
        "groups": pool.groups,
        "episodes": pool.episodes,
        "tokens": pool.tokens,
        "tokens_per_s": round(pool.tokens / max(1e-9, pool.life_s), 3),
        "sequences_mean": round(pool.load, 3),
    }


def describe(law: LengthLaw) -> dict[str, float]:
    """A distribution of lengths as it is drawn: its parameters, and mean and quantiles after the cut."""
    rng = random.Random(0)
    drawn = sorted(law.draw(rng) for _ in range(SAMPLES))
    quantiles = {f"p{q * 100:g}": float(drawn[int(q * SAMPLES)]) for q in QUANTILES}
    own = {"median": law.median, "sigma": law.sigma, "most": float(law.most)}
    return {**own, "mean": round(sum(drawn) / SAMPLES, 1), **quantiles}

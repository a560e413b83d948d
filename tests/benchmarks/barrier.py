"""Multi-policy training without barriers against a synchronous loop with them, on the same virtual hardware.

    python tests/benchmarks/barrier.py [--steps 40] [--seeds 0 1 2] [--json]

Both sides use the same GPUs, engine model, lengths, workflow and trainer model (``HARDWARE``, printed with the
figures). The barrier loop plays a batch to its end, then trains every policy on it, then loads the weights; it is
measured at every setting it has (all GPUs for both phases in turn, or split; answers of a turn waited for or not) and
counts at its best one. The loop without barriers is the real manager with virtual pools and trainers
(``astraflow.simulation``), at every split of the same GPUs, and counts at its best one too.

The paper reports 212.64 s an iteration for its barrier baseline and 77.65 s without barriers. Two numbers of the
virtual hardware, the decode step and the cost of training a token, were set within what one sees on GPUs so that the
barrier loop at its best setting takes the first; ``paper`` says how near both come, ``sensitivity`` what becomes of
the ratio when lengths or costs are others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
from collections.abc import Callable
from typing import Any

from astraflow.config import Dataflow, Policy, Pool, Problems, RunConfig, Sampling, Trainer
from astraflow.simulation import Scenario, simulate
from astraflow.simulation.engine import Answer, VirtualEngine
from astraflow.simulation.scenario import EngineModel
from astraflow.simulation.timeline import Timeline

PAPER_BARRIER_S, PAPER_ASYNC_S = 212.64, 77.65


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What both sides share. One policy is a solver, the other verifies; an episode has at most ``rounds`` rounds."""

    gpus: int = 8
    engine_step_s: float = 0.0122  # a decode step of a nearly empty batch
    engine_sequence_s: float = 0.00008  # what a sequence adds to it
    slots: int = 256
    token_train_s: float = 0.0004  # GPU-seconds to train one response token (log-probs, forward, backward)
    step_s: float = 4.0  # optimizer and overheads of a step
    switch_s: float = 6.0  # between generating and training on the same GPUs, both ways
    load_s: float = 4.0  # new weights into all engines
    median: tuple[float, float] = (700.0, 350.0)
    sigma: float = 0.9
    most: int = 8192
    rounds: int = 3
    retry: float = 0.5
    groups: int = 32
    group_size: int = 8
    max_staleness: int = 8


HARDWARE = Hardware()
POLICIES = ("solver", "verifier")


def scenario_of(hardware: Hardware, rollout: int, seed: int) -> Scenario:
    """The simulation's world: ``rollout`` GPUs play, the others train, half of them each policy."""
    train = (hardware.gpus - rollout) / len(POLICIES)
    return Scenario.model_validate(
        {
            "seed": seed,
            "policies": {
                name: {"median": median, "sigma": hardware.sigma}
                for name, median in zip(POLICIES, hardware.median, strict=True)
            },
            "rounds": hardware.rounds,
            "retry": hardware.retry,
            "sharing": "all",
            "engine": {
                "step_s": hardware.engine_step_s,
                "sequence_s": hardware.engine_sequence_s,
                "slots": hardware.slots,
            },
            "trainer": {
                "step_s": hardware.step_s,
                "token_s": hardware.token_train_s / train,
                "publish_s": 1.0,
                "gpus": train,
            },
            "network": {"transfer_s": hardware.load_s, "hop_s": 0.2},
            "pools": [{"count": rollout}],
        }
    )


def config_of(hardware: Hardware, rollout: int, steps: int, seed: int) -> RunConfig:
    """The run: the recipe values of the paper's code (batches of 256 sequences, groups of 8, staleness 8)."""
    in_flight = (hardware.max_staleness + 1) * hardware.groups
    return RunConfig(
        name="barrier",
        seed=seed,
        policies={name: Policy(model="none", sampling=Sampling(max_tokens=hardware.most)) for name in POLICIES},
        problems=Problems(source="none"),
        pools={"local": Pool(capacity=-(-in_flight // rollout))},
        trainer=Trainer(steps=steps, batch_size=hardware.groups),
        dataflow=Dataflow(group_size=hardware.group_size, max_staleness=hardware.max_staleness),
    )


def without_barriers(hardware: Hardware, rollout: int, steps: int, seed: int) -> float:
    """Seconds an iteration (a step of every policy) from the first batch to the last publish."""
    report = simulate(config_of(hardware, rollout, steps, seed), scenario_of(hardware, rollout, seed))
    return report.iteration_s


# --- the loop with barriers -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a barrier loop uses the GPUs: ``rollout`` of them play (0: all, in turn with training)."""

    rollout: int
    waits_for_turns: bool

    def __str__(self) -> str:
        placed = f"{self.rollout} play, the others train" if self.rollout else "all in turn"
        return f"{placed}; {'turns are waited for' if self.waits_for_turns else 'turns flow'}"


def with_barriers(hardware: Hardware, setting: Setting, steps: int, seed: int) -> float:
    """Seconds an iteration of play, train, load."""
    world = scenario_of(hardware, setting.rollout or hardware.gpus // 2, seed)
    rng = random.Random(f"{seed}/{setting}")
    engines_used = setting.rollout or hardware.gpus
    times = []
    for _ in range(steps):
        play_s, tokens = _play(hardware, world.engine, engines_used, setting.waits_for_turns, rng)
        times.append(play_s + _train_s(hardware, setting, tokens) + hardware.load_s)
    return statistics.mean(times)


def _train_s(hardware: Hardware, setting: Setting, tokens: list[int]) -> float:
    if setting.rollout == 0:  # one policy after the other, each on all GPUs
        return hardware.switch_s + sum(hardware.step_s + t * hardware.token_train_s / hardware.gpus for t in tokens)
    each = (hardware.gpus - setting.rollout) / len(POLICIES)
    return max(hardware.step_s + t * hardware.token_train_s / each for t in tokens)


def _play(
    hardware: Hardware, model: EngineModel, engines: int, waits_for_turns: bool, rng: random.Random
) -> tuple[float, list[int]]:
    """Seconds until a batch is played to its end, and its tokens by policy."""
    timeline = Timeline()
    servers = [VirtualEngine(timeline, model, 1.0) for _ in range(engines)]
    tokens = [0] * len(POLICIES)
    episodes = [_Episode(hardware, i % engines, rng) for i in range(hardware.groups * hardware.group_size)]

    def submit(episode: _Episode, then: Callable[[_Episode], None]) -> None:
        policy, length = episode.turns.pop(0)
        tokens[policy] += length
        servers[episode.server].submit(Answer(length, lambda: then(episode), lambda: None))

    def flow(episode: _Episode) -> None:
        if episode.turns:
            submit(episode, flow)

    if not waits_for_turns:
        for episode in episodes:
            flow(episode)
        timeline.run(lambda: False, float("inf"))
        return timeline.now, tokens
    while waiting := [episode for episode in episodes if episode.turns]:
        for index, episode in enumerate(waiting):
            episode.server = index % engines  # the turn's answers are spread evenly
            submit(episode, lambda _: None)
        timeline.run(lambda: False, float("inf"))
    return timeline.now, tokens


class _Episode:
    """The answers of one episode, drawn beforehand."""

    def __init__(self, hardware: Hardware, server: int, rng: random.Random) -> None:
        self.server = server
        self.turns: list[tuple[int, int]] = []
        rounds = 1
        while rounds < hardware.rounds and rng.random() < hardware.retry:
            rounds += 1
        for _ in range(rounds):
            for policy, median in enumerate(hardware.median):
                length = round(median * rng.lognormvariate(0.0, hardware.sigma))
                self.turns.append((policy, max(1, min(hardware.most, length))))


# --- both --------------------------------------------------------------------------------------------


def measure(hardware: Hardware, steps: int, seeds: list[int]) -> dict[str, Any]:
    """All settings of both, and the best of each."""
    splits = range(2, hardware.gpus - 1)
    settings = [Setting(rollout, waits) for rollout in (0, *splits) for waits in (True, False)]
    barrier = {
        str(setting): statistics.mean(with_barriers(hardware, setting, steps, seed) for seed in seeds)
        for setting in settings
    }
    free = {
        f"{rollout} play, the others train": statistics.mean(
            without_barriers(hardware, rollout, steps, seed) for seed in seeds
        )
        for rollout in splits
    }
    best_s, async_s = min(barrier.values()), min(free.values())
    return {
        "async_speedup": best_s / async_s,
        "barrier_best_s": best_s,
        "async_s": async_s,
        "paper": {"barrier_off": best_s / PAPER_BARRIER_S - 1, "async_off": async_s / PAPER_ASYNC_S - 1},
        "barrier": barrier,
        "without": free,
    }


def sensitivity(hardware: Hardware, steps: int, seeds: list[int]) -> dict[str, float]:
    """The speed-up when one thing is different."""
    others: dict[str, dict[str, float | int]] = {
        "lengths less spread (sigma 0.6)": {"sigma": 0.6},
        "lengths more spread (sigma 1.2)": {"sigma": 1.2},
        "training at half the cost": {"token_train_s": hardware.token_train_s / 2},
        "training at twice the cost": {"token_train_s": hardware.token_train_s * 2},
        "one round": {"rounds": 1},
        "max_staleness 2": {"max_staleness": 2},
    }
    return {
        name: measure(dataclasses.replace(hardware, **change), steps, seeds)["async_speedup"]  # type: ignore[arg-type]
        for name, change in others.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = {
        "benchmark": "barrier",
        **measure(HARDWARE, given.steps, given.seeds),
        "sensitivity": sensitivity(HARDWARE, max(5, given.steps // 4), given.seeds[:1]),
        "hardware": dataclasses.asdict(HARDWARE),
        "steps": given.steps,
        "seeds": given.seeds,
    }
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    for side in ("barrier", "without"):
        for name, seconds in figures[side].items():
            print(f"{seconds:8.1f} s  {side}: {name}")
    for name, ratio in figures["sensitivity"].items():
        print(f"{ratio:8.2f}×   {name}")
    print(f"{figures['async_speedup']:.2f}× at the best settings of both")


if __name__ == "__main__":
    main()

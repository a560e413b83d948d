"""Answers a second through the reward ``maths``: those that are decided at once, and those that algebra decides.

    python tests/benchmarks/answers.py [--rounds 5] [--json]

An answer is a text whose box is found, brought into normal form and compared with the right one. Of those decided at
once half are right, and they come one after the other, as on a pool's event loop; the others come side by side and
share two worker processes. Rounds of both alternate, the first is not counted, medians are given; ``…_cpu_ms`` is the
processor time of one, workers included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from astraflow.problems import Problem
from astraflow.workloads.maths.reward import MathsReward

FAST = 2000
ALGEBRA = 40
WORDS = "First we look at what is given, then we simplify it step by step. " * 8

Pair = tuple[Problem, str, float]


def quick_pairs() -> list[Pair]:
    """Numbers, fractions, thousands, units and choices, written unlike the right answer."""
    pairs: list[Pair] = []
    for n in range(FAST):
        gold, said = [
            (f"{n}", f"{n}.0"),
            (f"\\frac{{{n}}}{{7}}", f"{2 * n}/14"),
            (f"{1000 + n}", f"{1000 + n:,}"),
            (f"{n}", f"{n}\\text{{ cm}}"),
        ][n % 4]
        right = n % 8 < 4
        pairs.append((_problem(n, gold), _text(said if right else f"1{said}"), float(right)))
    return pairs


def algebra_pairs() -> list[Pair]:
    """Products to be multiplied out, half of them wrongly."""
    pairs: list[Pair] = []
    for n in range(1, ALGEBRA + 1):
        right = n % 2 == 0
        said = f"x^2+{2 * n + 1}x+{n * (n + 1) + (not right)}"
        pairs.append((_problem(n, f"(x+{n})(x+{n + 1})"), _text(said), float(right)))
    return pairs


def _problem(n: int, gold: str) -> Problem:
    return Problem(n, str(n), "Simplify.", gold)


def _text(said: str) -> str:
    return f"{WORDS}So the answer is \\boxed{{{said}}}."


def cpu_s() -> float:
    """Processor time of this process and of the workers that live."""
    found = time.process_time()
    for child in Path("/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found += (int(fields[11]) + int(fields[12])) / 100
    return found


async def measure_once(reward: MathsReward, pairs: Sequence[Pair], *, side_by_side: bool) -> tuple[float, float]:
    """Answers a second, and the processor milliseconds of one. Every verdict is compared with what is known."""
    begun, used = time.perf_counter(), cpu_s()
    if side_by_side:
        scores = await asyncio.gather(*(reward(problem, text) for problem, text, _ in pairs))
    else:
        scores = [await reward(problem, text) for problem, text, _ in pairs]
    took_s, cpu_ms = time.perf_counter() - begun, 1000 * (cpu_s() - used)
    assert scores == [right for _, _, right in pairs]
    return len(pairs) / took_s, cpu_ms / len(pairs)


async def measure(rounds: int) -> dict[str, float]:
    """Medians over the rounds."""
    reward = MathsReward()
    quick, algebra = quick_pairs(), algebra_pairs()
    try:
        rows = [
            (
                *await measure_once(reward, quick, side_by_side=False),
                *await measure_once(reward, algebra, side_by_side=True),
            )
            for _ in range(rounds + 1)
        ][1:]
    finally:
        await reward.close()
    per_s, cpu_ms, algebra_per_s, algebra_cpu_ms = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "answers_per_s": round(per_s),
        "answer_cpu_ms": round(cpu_ms, 3),
        "algebra_per_s": round(algebra_per_s, 1),
        "algebra_cpu_ms": round(algebra_cpu_ms, 2),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Speed of the maths checker.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.rounds))
    print(json.dumps(figures) if given.json else "\n".join(f"{name:16} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

"""What the code sandbox carries: submissions a second, and test cases a second, on the processors that there are.

    python tests/benchmarks/sandbox.py [--kind bubblewrap] [--rounds 3] [--json]

A submission is a fresh sandbox that runs a small program once; cases are further runs in the same sandbox, each in a
process of its own. As many sandboxes run side by side as there are processors. Rounds of both alternate, the first is
not counted, medians are given. ``bare_ms`` is starting the interpreter alone, for scale; ``…_cpu_ms`` is processor
time, this process and all of the sandbox's, which says what an idle machine carries when this one is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time

from astraflow.workloads.sandbox import KINDS, Program, Sandbox

SOURCE = "import sys\nnumbers = list(map(int, sys.stdin.read().split()))\nprint(sum(sorted(numbers)))\n"
STDIN = " ".join(map(str, range(200)))
SUBMISSIONS = 40
CASES = 100


def cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def submissions(sandbox: Sandbox) -> tuple[float, float]:
    """Submissions a second, and the processor milliseconds of one."""
    begun, used = time.perf_counter(), cpu_s()
    found = await asyncio.gather(*(sandbox.run(SOURCE, [Program(STDIN)]) for _ in range(SUBMISSIONS)))
    assert all(report.stdout == "19900\n" for [report] in found)
    return SUBMISSIONS / (time.perf_counter() - begun), 1000 * (cpu_s() - used) / SUBMISSIONS


async def cases(sandbox: Sandbox) -> tuple[float, float]:
    """Cases a second and the processor milliseconds of one, four submissions of them; the sandboxes' start is in it."""
    begun, used = time.perf_counter(), cpu_s()
    found = await asyncio.gather(*(sandbox.run(SOURCE, [Program(STDIN)] * CASES) for _ in range(4)))
    assert all(report.stdout == "19900\n" for reports in found for report in reports)
    return 4 * CASES / (time.perf_counter() - begun), 1000 * (cpu_s() - used) / (4 * CASES)


def bare() -> float:
    """Milliseconds of an interpreter that does nothing."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return 1000 * (time.perf_counter() - begun)


async def measure(kind: str, rounds: int) -> dict[str, float | str]:
    """Medians over the rounds."""
    sandbox = await Sandbox.open([kind])
    rows = [(*await submissions(sandbox), *await cases(sandbox), bare()) for _ in range(rounds + 1)][1:]
    per_s, cpu_ms, cases_per_s, case_cpu_ms, bare_ms = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "kind": kind,
        "submissions_per_s": round(per_s, 1),
        "cases_per_s": round(cases_per_s, 1),
        "submission_cpu_ms": round(cpu_ms, 1),
        "case_cpu_ms": round(case_cpu_ms, 2),
        "bare_ms": round(bare_ms, 1),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Speed of the code sandbox.")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.kind, given.rounds))
    print(json.dumps(figures) if given.json else "\n".join(f"{name:18} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

"""A participant of ``run_processes`` that is as slow as it is told to be: hardware of other speeds, on this machine.

    python tests/benchmarks/region_process.py ROLE STORE_URL RUN STAMPS.json

``PACE_S``: a decode step of a pool's engine takes so long at least, whatever is in the batch. ``STEP_S``: a trainer's
step does. Both wait where the computation was, in its thread, so everything around it goes on as it would. The stamps
say how many turns there were (``paced/turns``) and how many were longer by themselves (``paced/late``), which is
where this machine was too slow for what it imitates.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from run_processes import Stamps, main

PACE_S = "ASTRAFLOW_PACE_S"
STEP_S = "ASTRAFLOW_STEP_S"


def paced(work: Callable[..., Any], least_s: float, stamps: Stamps) -> Callable[..., Any]:
    """``work``, and a wait until it took ``least_s``."""

    @functools.wraps(work)
    def slow(*args: Any) -> Any:
        began_s = time.monotonic()
        try:
            return work(*args)
        finally:
            left_s = began_s + least_s - time.monotonic()
            stamps.times["paced/turns"] = stamps.times.get("paced/turns", 0.0) + 1
            if left_s > 0:
                time.sleep(left_s)
            else:
                stamps.times["paced/late"] = stamps.times.get("paced/late", 0.0) + 1

    return slow


def slow_down(stamps: Stamps) -> None:
    """Do what the environment says; before anything imports what is slowed."""
    if PACE_S in os.environ:
        from astraflow.raas.decoder import Decoder

        Decoder.step = paced(Decoder.step, float(os.environ[PACE_S]), stamps)  # type: ignore[method-assign]
    if STEP_S in os.environ:
        from astraflow.trainer import step

        step.train_batch = paced(step.train_batch, float(os.environ[STEP_S]), stamps)


if __name__ == "__main__":
    noted = Stamps()
    slow_down(noted)
    main(noted)

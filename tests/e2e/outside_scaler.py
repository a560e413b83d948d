"""Scales one region of a run from outside, by nothing but what `astraflow … --json` says: the kind of script that an
operator writes. It adds pools while the trainer waits, and takes them back once all of them have played.

    python outside_scaler.py RUN REGION MOST
"""

import json
import subprocess
import sys
import time

RUN, REGION, MOST = sys.argv[1], sys.argv[2], int(sys.argv[3])


def astraflow(*words: str) -> dict:
    command = [sys.executable, "-m", "infra.cli", *words, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


while True:
    status = astraflow("status", RUN)
    wanted, live = status["pools_wanted"][REGION], status["pools"].get("live", 0)
    print(f"step {status['steps']}: waits {status['wait_ratio']}, {live} of {wanted} pools live", flush=True)
    if live >= MOST:
        astraflow("scale", RUN, REGION, "1")
        break
    if live >= wanted and (status["wait_ratio"] or 0.0) > 0.1:
        astraflow("scale", RUN, REGION, str(wanted + 1))
    time.sleep(1.0)

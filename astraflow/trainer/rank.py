"""One rank of a trainer: what torchrun starts. ``python -m astraflow.trainer.rank RUN STORE POLICY PARTICIPANT``."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence

import torch.distributed as dist

from astraflow.component import use_code
from astraflow.recipe import load_run_config
from astraflow.trainer.follower import follow
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.team import join_team
from astraflow.trainer.torchrun import PARENT, write_error
from storage import open_store
from storage.errors import AstraFlowError

LOOK_EVERY_S = 2.0


def main(arguments: Sequence[str]) -> int:
    """Train as rank 0, or follow it; the exit code says how it ended."""
    run, store, policy, participant = arguments
    logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(levelname)-7s | %(message)s", datefmt="%H:%M:%S")
    _end_with(os.environ.get(PARENT))
    team = join_team()
    try:
        opened = open_store(store)
        config = load_run_config(opened, run)
        use_code(config.code)
        if team.rank == 0:
            run_trainer(opened, config, policy, participant=participant, team=team)
        else:
            follow(opened, config, policy, participant=f"{participant}-rank{team.rank}", team=team)
    except AstraFlowError as error:
        write_error(error, team.rank)
        logging.getLogger("astraflow.trainer").error("rank %s: %s", team.rank, error)
        sys.stderr.flush()
        os._exit(error.exit_code)  # a team that waits for this rank must not be waited for
    dist.destroy_process_group()
    return 0


def _end_with(parent: str | None) -> None:
    """End this process when the one that started torchrun is gone: nobody would watch the ranks then."""

    def watch(pid: int) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                os._exit(1)
            except PermissionError:
                continue

    if parent:
        threading.Thread(target=watch, args=(int(parent),), name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

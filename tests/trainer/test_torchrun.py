"""Watching ranks: how they end, and what is said of it. Real processes, without a model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import astraflow.trainer.torchrun as module
from astraflow.trainer.torchrun import ERRORS, PARENT, run_ranks, write_error
from astraflow.trainer.wire import decode_batch, encode_batch
from storage.errors import AstraFlowError, Fenced
from tests.trainer.samples import loaded


def test_a_batch_on_the_wire_is_the_same_batch():
    batch = loaded(np.random.default_rng(3), parts=2, role="a", slot=1, top_p=0.5)
    batch.skipped[7] = "missing"
    again = decode_batch(encode_batch(batch))
    assert (again.n, again.skipped) == (batch.n, batch.skipped)
    for one, two in zip(batch.parts, again.parts, strict=True):
        assert one.group == two.group
        for a, b in zip(one.sequences, two.sequences, strict=True):
            for name in a.__slots__:
                left, right = getattr(a, name), getattr(b, name)
                assert np.array_equal(left, right) and getattr(left, "dtype", None) == getattr(right, "dtype", None)


class Scripted:
    """A child process in place of torchrun."""

    def __init__(self, monkeypatch, code):
        self.processes = []
        original = subprocess.Popen

        def start(command, **options):
            assert "torch.distributed.run" in command and "astraflow.trainer.rank" in command
            self.processes.append(original([sys.executable, "-c", code], **options))
            return self.processes[-1]

        monkeypatch.setattr(module.subprocess, "Popen", start)


def watched():
    run_ranks("run", "file:///nowhere", "solver", participant="trainer-solver-0", ranks=2, threads=1)


def test_ranks_that_end_well_are_done(monkeypatch):
    Scripted(monkeypatch, "pass")
    watched()


def test_the_first_error_of_a_rank_is_raised(monkeypatch):
    code = (
        "import os, time; from pathlib import Path; folder = Path(os.environ['ASTRAFLOW_RANK_ERRORS']);"
        'told = \'{"class": "Fenced", "what": "taken over", "where": "v3", "remedy": "", "kind": "k"}\';'
        "(folder / '1.json').write_text(told); time.sleep(0.05);"
        "(folder / '0.json').write_text(told.replace('Fenced', 'DataError')); raise SystemExit(5)"
    )
    Scripted(monkeypatch, code)
    with pytest.raises(Fenced) as raised:
        watched()
    assert (raised.value.what, raised.value.where, raised.value.exit_code) == ("taken over", "v3", 5)


def test_a_rank_that_dies_without_a_word_is_an_error_too(monkeypatch):
    Scripted(monkeypatch, "import os; os._exit(9)")
    with pytest.raises(AstraFlowError) as raised:
        watched()
    assert raised.value.kind == "rank" and "9" in str(raised.value)


def test_an_interrupted_watcher_leaves_nothing_behind(monkeypatch):
    code = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"
    )
    plain = subprocess.Popen
    scripted = Scripted(monkeypatch, code)

    class Interrupted(Exception):
        pass

    def interrupt(self, timeout=None):
        if timeout is None and not scripted.interrupted:
            scripted.interrupted = True
            time.sleep(0.5)
            raise Interrupted
        return original(self, timeout)

    scripted.interrupted = False
    original = plain.wait
    monkeypatch.setattr(plain, "wait", interrupt)
    with pytest.raises(Interrupted):
        watched()
    process = scripted.processes[0]
    assert process.poll() is not None
    for _ in range(100):
        left = [other for other in psutil.process_iter() if is_running_in(other, process.pid)]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(left)


def is_running_in(process, group):
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def test_errors_are_left_only_for_a_watcher(monkeypatch, tmp_path):
    monkeypatch.delenv(ERRORS, raising=False)
    write_error(Fenced("x"), 0)
    monkeypatch.setenv(ERRORS, str(tmp_path))
    write_error(Fenced("x"), 3)
    assert [path.name for path in tmp_path.iterdir()] == ["3.json"]


def test_a_rank_ends_with_the_process_that_watches_it(tmp_path):
    code = (
        "import astraflow.trainer.rank as rank, os, time; rank.LOOK_EVERY_S = 0.1;"
        "rank._end_with(os.environ['X']); time.sleep(60)"
    )
    watcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    environment = {**os.environ, "X": str(watcher.pid), "PYTHONPATH": str(Path(__file__).parents[2])}
    rank = subprocess.Popen([sys.executable, "-c", code], env=environment)
    watcher.kill()
    watcher.wait()
    assert rank.wait(timeout=120) == 1
    assert PARENT == "ASTRAFLOW_TRAINER_PARENT"

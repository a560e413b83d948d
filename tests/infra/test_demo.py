"""What the demo leaves behind in a stack that ran before it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from infra import demo, launch, local_stack
from infra.launch import Launched
from storage.errors import ServiceError

LAUNCHED = Launched("0", "http://127.0.0.1:1/runs/flow-run/0")


def ended(tmp_path: Path, *, was_up: bool) -> str:
    output, left = io.StringIO(), contextlib.ExitStack()
    console = Console(file=output, width=200)
    left.callback(demo._cancel, console, LAUNCHED, "demo")
    demo._end(console, tmp_path, left, was_up=was_up)
    return output.getvalue()


def test_a_run_that_was_cut_short_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[Launched] = []
    monkeypatch.setattr(launch, "cancel", cancelled.append)
    said = ended(tmp_path, was_up=True)
    assert cancelled == [LAUNCHED]
    assert "The run demo is being cancelled; `astraflow run --resume demo` goes on." in said
    assert "still runs" in said


def test_one_that_cannot_be_cancelled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(launched: Launched) -> None:
        raise ServiceError("away", kind="unreachable")

    monkeypatch.setattr(launch, "cancel", away)
    assert "The run demo may go on" in ended(tmp_path, was_up=True)


def test_with_the_stack_ends_what_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downs: list[Path] = []
    monkeypatch.setattr(local_stack, "down", downs.append)
    monkeypatch.setattr(launch, "cancel", lambda launched: pytest.fail("the stack's end is enough"))
    assert "Nothing of it runs any more" in ended(tmp_path, was_up=False)
    assert downs == [tmp_path]

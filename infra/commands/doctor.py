"""``doctor``: whether this machine can carry a run, and what to do where it can't."""

from __future__ import annotations

import dataclasses

import typer
from rich.console import Console
from rich.text import Text

from infra.commands.options import Json, Store, print_json

_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "fail": ("FAIL", "bold red")}


def doctor(store: Store = None, as_json: Json = False) -> None:
    """Check Python, torch, engine, store, disk, Prefect and the local stack; say what to fix. Changes nothing."""
    from infra.checkup import FAIL, examine

    console, findings = Console(), []
    for finding in examine(store):
        findings.append(finding)
        if not as_json:
            line = Text.assemble(_MARKS[finding.state], f" {finding.check:<9}", finding.found)
            if finding.remedy and finding.state != "ok":
                line.append(f"\n     {'':<9}→ {finding.remedy}", style="bold")
            console.print(line, soft_wrap=True)
    failed = [finding for finding in findings if finding.state == FAIL]
    if as_json:
        print_json({"ok": not failed, "findings": [dataclasses.asdict(finding) for finding in findings]})
    if failed:
        raise typer.Exit(failed[0].code)

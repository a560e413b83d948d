"""``why``: what became of a group, a trajectory or a batch, and for which reasons."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.commands.options import Json, Last, Store, print_json, run_url, say


def why(
    what: Annotated[str, typer.Argument(help="A group (17), a trajectory (17-1-0-solver-0) or a batch (solver/3).")],
    run: Annotated[str | None, typer.Option("--run", help="The run's name; left out: the newest run.")] = None,
    last: Last = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Tell the life of a group, a trajectory or a batch, from lease to training or drop, with the reasons."""
    from astraflow import open_run
    from astraflow.query.why import why as ask

    story = ask(open_run(run_url(run, store)), what)
    if as_json:
        print_json(story.to_dict())
        return
    say(story.subject)
    epochs = len({event.epoch for event in story.events}) > 1  # each manager's clock begins at 0
    say(f"  decision {'manager ' if epochs else ''}   seconds")
    for event in story.events:
        manager = f"{event.epoch:>7} " if epochs else ""
        say(f"  {event.seq:>8} {manager}{event.now:>10.2f}  {event.text}")
    say(f"→ {story.outcome}")

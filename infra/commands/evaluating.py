"""``eval``: what a run's evaluations came to, by the versions that played."""

from __future__ import annotations

from rich.console import Console

from infra.commands.options import Json, Last, RunName, Store, print_json, run_url, say


def evaluations(run: RunName = None, last: Last = False, store: Store = None, as_json: Json = False) -> None:
    """Show the evaluations of a run: avg@k and pass@k with 95 % intervals, by the versions that played."""
    from astraflow import open_run
    from astraflow.pages import evaluations as pages
    from infra.display import rows

    opened = open_run(run_url(run, store))
    if as_json:
        print_json({"run": opened.keys.run, "evaluations": pages.rounds(opened)})
        return
    shown = pages.evaluations(opened)
    if shown:
        rows(Console(), list(shown[0]), shown)
    elif opened.config.evaluations:
        say(f"No round of {', '.join(opened.config.evaluations)} is over yet")
    else:
        say("The run has no evaluations: [evaluations.NAME] in its recipe makes one")

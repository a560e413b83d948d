"""``astraflow``: the command line. Each command is a few lines over the core; an error is one message and a code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from infra.commands import (
    deploying,
    doctor,
    evaluating,
    logs,
    looking,
    maintaining,
    project,
    replaying,
    simulate,
    steering,
    taking_out,
    weights,
    why,
)
from infra.commands.options import EPILOG, Json, Last, RunOption, Store, note, print_json, run_url, say
from infra.interrupts import INTERRUPTED, farewell, was_heard
from storage.errors import AstraFlowError, ConfigError

app = typer.Typer(
    name="astraflow",
    help="RL post-training of agentic LLMs on Prefect and an object store.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command(epilog=EPILOG)
def up(as_json: Json = False) -> None:
    """Start the local stack (Prefect server and runner), or what of it does not run."""
    import dataclasses
    from pathlib import Path

    from infra import local_stack, regions

    note("Looking for the local stack; starting it takes about half a minute …")
    stack, started = local_stack.up(local_stack.stack_home())
    found = regions.recipes(Path.cwd())[0] if started else []
    places, unfit = regions.places(config for _, config in found)
    if as_json:
        named = [dataclasses.asdict(place) for place in places]
        print_json({"api_url": stack.api_url, "ui_url": stack.ui_url, "started": started, "regions": named})
        return
    say(f"{'Started' if started else 'Runs already'}: {stack.ui_url}")
    for line in (*(place.described for place in places), *unfit):
        say(f"  {line}")


@app.command(epilog=EPILOG)
def down(as_json: Json = False) -> None:
    """End the local stack and every flow run it started. Runs stay in the store and can be resumed."""
    from infra import local_stack

    note("Ending flow runs, runner and server; flow runs have half a minute to hand back …")
    ended = local_stack.down(local_stack.stack_home())
    if as_json:
        print_json({"ended": ended})
    else:
        say("Ended: nothing of the local stack runs" if ended else "Nothing was running")


@app.command(epilog=EPILOG)
def run(  # noqa: PLR0917  # typer takes options as arguments
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe file, or the name of a built-in one: tiny-add.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as in trainer.lr=1e-6 name=second.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the config and what would start; start nothing.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that is in the store.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="With --resume: so many processes for each trainer from here on.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the experiment is launched.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Run a recipe and follow it to its end. Ctrl-C leaves it running; Ctrl-C twice stops it."""
    from infra import run_command

    if resume and (recipe or overrides):
        raise ConfigError(
            "--resume goes on with a frozen config; it takes no recipe and no overrides",
            where="command line",
            remedy="Give either a recipe or --resume RUN",
            kind="usage",
        )
    if ranks and not resume:
        raise ConfigError(
            "--ranks goes with --resume",
            where="command line",
            remedy="Of a new run: astraflow run RECIPE trainer.ranks=2",
            kind="usage",
        )
    config = run_command.resolve(recipe, overrides or [], resume=resume, store=store, ranks=ranks)
    if dry_run:
        run_command.show_plan(config, as_json=as_json)
        return
    raise typer.Exit(run_command.run(config, resume=resume is not None, detach=detach, as_json=as_json))


@app.command(epilog=EPILOG)
def runs(store: Store = None, as_json: Json = False) -> None:
    """List the runs of a store, the newest last."""
    import dataclasses

    from astraflow import query
    from infra.display import rows
    from infra.places import open_named

    entries = [dataclasses.asdict(entry) for entry in query.runs(open_named(store))]
    if as_json:
        print_json(entries)
        return
    shown = [
        {
            "run": entry["run"],
            "state": entry["state"],
            "reason": entry["reason"],
            "steps": ", ".join(f"{policy} {step}" for policy, step in entry["steps"].items()),
        }
        for entry in entries
    ]
    rows(Console(), ["run", "state", "reason", "steps"], shown)


@app.command(epilog=EPILOG)
def query(
    sql: Annotated[
        str,
        typer.Argument(
            help="DuckDB SQL over trajectories, parts, batches, steps, versions, decisions, pools, loads, load_pools, "
            "evaluations, stages."
        ),
    ],
    run: RunOption = None,
    last: Last = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Ask a run a question in SQL."""
    from astraflow import open_run
    from infra.display import rows

    table = open_run(run_url(run, store)).sql(sql)
    if as_json:
        print_json(table.to_pylist())
    else:
        rows(Console(), table.column_names, table.to_pylist())


for command in (
    project.init,
    doctor.doctor,
    looking.status,
    looking.report,
    why.why,
    replaying.replay,
    logs.logs,
    steering.stop,
    steering.pause,
    steering.resume,
    steering.scale,
    maintaining.maintain,
    deploying.deploy,
    simulate.simulate,
    taking_out.export,
    taking_out.show,
):
    settings = {"ignore_unknown_options": command is steering.scale}  # -1 is a number, if a wrong one
    app.command(epilog=EPILOG, context_settings=settings)(command)
app.command("eval", epilog=EPILOG)(evaluating.evaluations)
app.add_typer(weights.app)


def main() -> None:
    """The console script: runs ``app`` and turns errors into one message and an exit code."""
    debug = bool(os.environ.get("ASTRAFLOW_DEBUG"))
    try:
        app()
    except AstraFlowError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except SystemExit as end:  # what typer makes of Ctrl-C, or a command's own code
        if end.code == INTERRUPTED:
            farewell()
        raise
    except KeyboardInterrupt:
        farewell()
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:  # the process boundary: nobody wants a traceback unasked
        if debug:
            raise
        if was_heard():  # libraries that import lazily make an import error of a Ctrl-C
            farewell()
            sys.exit(INTERRUPTED)
        print(  # noqa: T201
            f"error: unexpected {type(error).__name__}: {error}. Set ASTRAFLOW_DEBUG=1 to see where", file=sys.stderr
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

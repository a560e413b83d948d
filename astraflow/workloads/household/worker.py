"""A process that plays ALFWorld games: a request a line in, an answer a line out. ``players`` starts it.

It runs as a plain file and imports nothing of ours, so that its Python may be that of an environment of its own. Games
are kept by number: ``{"play": n, "game": {…}}``, ``{"play": n, "action": "…"}``, ``{"play": n, "end": true}``. A game
that breaks is an answer with ``error``; the others go on.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_UNKNOWN = "UNKNOWN GOAL"


def names(ids: Iterable[str]) -> dict[str, str]:
    """What a player calls the things of a game, as ALFWorld calls them: the kind and a number, the last id being 1."""
    ordered = sorted(ids)
    kinds = {name: _kind(name) for name in ordered}
    left = Counter(kinds.values())
    called = {}
    for name in ordered:
        called[name] = f"{kinds[name]} {left[kinds[name]]}" if "_bar_" in name else name
        left[kinds[name]] -= 1
    return called


def _kind(name: str) -> str:
    kind = name.split("_bar_", 1)[0]
    return f"{kind}basin" if "basin" in name and not kind.endswith("basin") else kind


def main() -> None:
    """Serve until the other side closes the pipe."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # the planner prints
    try:
        import textworld.envs.pddl.pddl as texts  # noqa: PLC0415 - its absence is the parent's to report

        missing = "the planner of textworld[pddl]" if texts.fast_downward_missing else ""
    except ImportError as error:
        missing = error.name or str(error)
    print(json.dumps({"missing": missing} if missing else {"ready": True}), file=answers, flush=True)
    games: dict[int, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = _answer(games, asked)
        except Exception as error:  # noqa: BLE001 - a game's fault is that game's alone
            games.pop(asked.get("play"), None)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _answer(games: dict[int, Any], asked: dict[str, Any]) -> dict[str, Any]:
    play = asked["play"]
    if asked.get("end"):
        games.pop(play, None)
        return {}
    if "game" in asked:
        games[play] = _load(asked["game"])
        return _seen(games[play].reset())
    return _seen(games[play].step(asked["action"])[0])


def _load(game: dict[str, Any]) -> Any:
    """A game by the path of its file, or by its PDDL problem and its task in the domain that ALFWorld ships."""
    import textworld  # noqa: PLC0415
    from textworld.envs.pddl import PddlEnv  # noqa: PLC0415

    if "path" in game:
        whole = json.loads(Path(game["path"]).read_text(encoding="utf-8"))
    else:
        domain, grammar = _shipped()
        whole = {
            "pddl_domain": domain,
            "grammar": grammar.replace(f"{_UNKNOWN}.", game["task"]),
            "pddl_problem": game["pddl"],
        }
    env = PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True))
    env.load(whole)
    called = names(info.id for info in env._entity_infos.values())
    for info in env._entity_infos.values():
        info.name = called[info.id]
    return env


def _shipped() -> tuple[str, str]:
    """Domain and grammar of the package alfworld, which is not imported: it would make folders in the home."""
    from importlib.util import find_spec  # noqa: PLC0415

    spec = find_spec("alfworld")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package alfworld, whose domain procedural houses use, is not installed")
    data = Path(spec.origin).parent / "data"
    return (data / "alfred.pddl").read_text(encoding="utf-8"), (data / "alfred.twl2").read_text(encoding="utf-8")


def _seen(state: Any) -> dict[str, Any]:
    won = bool(state["won"])
    return {"text": state.feedback, "actions": list(state["admissible_commands"]), "won": won}


if __name__ == "__main__":
    main()

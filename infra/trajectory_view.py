"""A trajectory in the terminal: who spoke in which colour, what is trained on, and what each token cost."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from astraflow.query.shown import ShownTrajectory, ShownTurn, Token

COLORS = {"assistant": "green", "tool": "magenta", "user": "cyan", "system": "yellow"}
_NO_LOSS = "dim"


def page(shown: ShownTrajectory, *, tokens: bool = False) -> RenderableType:
    """The whole trajectory; with ``tokens``, a line for each of them."""
    parts: list[RenderableType] = [
        Text.assemble((shown.trajectory_id, "bold"), f"  {shown.run}, policy {shown.policy}, role {shown.role}"),
        _facts(shown),
        Text(),
        Text.assemble(("prompt", f"bold {COLORS['user']}"), f"  {len(shown.prompt_ids)} tokens"),
        Text(shown.prompt or _ids(shown.prompt_ids), style=COLORS["user"]),
    ]
    for turn in _turns(shown):
        parts += [Text(), _head(turn, shown.tokens), _body(turn, shown.tokens)]
    parts += [Text(), _legend()]
    if tokens:
        parts += [Text(), _table(shown)]
    return Group(*parts)


def _facts(shown: ShownTrajectory) -> Text:
    parts = "".join(f"  {name} {value:.4g}" for name, value in shown.reward_parts.items())
    became = f"{shown.state} ({shown.reason})" if shown.reason else shown.state
    facts = [f"{name} {_value(value)}" for name, value in shown.facts.items() if value not in (None, "", {})]
    return Text.assemble(
        "reward ", (f"{shown.reward:.4g}", "bold"), f"{parts}  part {became or 'unknown'}\n", ("  ".join(facts), "dim")
    )


def _turns(shown: ShownTrajectory) -> list[ShownTurn]:
    """The turns as they were recorded; one over all tokens if none was."""
    return shown.turns or [ShownTurn("assistant", 0, len(shown.tokens), "", "", "")]


def _head(turn: ShownTurn, tokens: list[Token]) -> Text:
    own = tokens[turn.start : turn.end]
    trained = [token for token in own if token.trained]
    versions = sorted({token.version for token in trained})
    words = [f"{len(own)} tokens", f"{len(trained)} trained"]
    if versions:
        words.append(f"version {versions[0]}" + (f" to {versions[-1]}" if versions[-1] != versions[0] else ""))
        words.append(f"mean log-prob {sum(token.logprob for token in trained) / len(trained):.3f}")
    words += [word for word in (turn.finish_reason and f"ended by {turn.finish_reason}", turn.tool, turn.error) if word]
    return Text.assemble((turn.role, f"bold {_color(turn)}"), "  " + ", ".join(words))


def _body(turn: ShownTurn, tokens: list[Token]) -> Text:
    """The turn's text, what carries no loss dimmed; a mark where another version sampled on."""
    text = Text()
    version: int | None = None
    for token in tokens[turn.start : turn.end]:
        if token.trained:
            if version not in (None, token.version):
                text.append(f"[v{token.version}]", style="bold yellow")
            version = token.version
        text.append(token.text or f"{token.id} ", style=_color(turn) if token.trained else f"{_NO_LOSS} {_color(turn)}")
    return text


def _legend() -> Text:
    return Text("dim: no loss; [v7]: sampled by version 7 from there on", style="dim")


def _table(shown: ShownTrajectory) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("#", "role", "id", "token", "log-prob", "version", "loss"):
        table.add_column(column, justify="right" if column in ("#", "id", "log-prob", "version") else "left")
    for turn in _turns(shown):
        for place in range(turn.start, min(turn.end, len(shown.tokens))):
            token = shown.tokens[place]
            cells = [str(place), turn.role, str(token.id), repr(token.text), f"{token.logprob:.4f}", str(token.version)]
            table.add_row(*map(Text, cells), "yes" if token.trained else "no", style=_color(turn))
    return table


def _color(turn: ShownTurn) -> str:
    return COLORS.get(turn.role, "white")


def _ids(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

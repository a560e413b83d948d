"""Bringing a run's pools to the numbers that its manager decided: the last ones go, missing ones start (again).

The decisions say how many pools each region has; which processes these are is this module's business. A pool that left
or failed is started again only by a decision made since then, never by the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import Outbox
from astraflow.records import Wanted
from astraflow.scale_view import ScaleView
from flows.children import ChildSpec, children_of
from flows.launcher import Launcher
from flows.lives import Child

DONE = "done"
"""Why a child is not needed any more that has done what it was there for, or that left because it was asked to."""


@dataclass(slots=True)
class Scaling:
    """Follows the numbers of pools of one run."""

    config: RunConfig
    view: ScaleView
    launcher: Launcher
    follower: RunFollower
    outbox: Outbox
    note: Callable[[str], None]
    clock: Callable[[], float]
    _followed: int = 0  # changes of the numbers that were acted upon

    def begin(self) -> None:
        """The children are, or are about to be, what was decided until now."""
        self._followed = self.view.book.changes

    def wanted(self) -> list[ChildSpec]:
        """What the run consists of now, by the manager's word on the numbers of pools."""
        return children_of(self.config, self.view.counts())

    def ever(self) -> list[ChildSpec]:
        """What it ever consisted of."""
        return children_of(self.config, self.view.ever())

    def follow(self, children: list[Child]) -> None:
        """Bring the children to what is wanted: add those that are missing, ask those to leave that are too many."""
        wanted = {spec.key: spec for spec in self.wanted()}
        if self.view.book.changes != self._followed:
            known = {child.spec.key: child for child in children}
            for key, spec in wanted.items():
                child = known.get(key)
                if child is None:
                    children.append(Child(spec, start_at=self.clock()))
                elif child.over and child.spec.role == "pool":
                    child.over, child.run, child.restarts, child.start_at = "", None, 0, self.clock()
                    child.asked_to_go.clear()
            self._followed = self.view.book.changes
        for child in children:
            if not child.over and child.spec.key not in wanted:
                self._let_go(child)

    def has_gone(self, child: Child, how: str) -> None:
        """A pool that was asked to leave runs no more; it starts again if more are wanted by now."""
        child.asked_to_go.clear()
        is_wanted = child.spec.key in {spec.key for spec in self.wanted()}
        self.note(f"{child.spec.key}: has left ({how})" + ("; it is wanted again" if is_wanted else ""))
        child.run, child.restarts, child.start_at = None, 0, self.clock()
        child.over = "" if is_wanted else DONE

    def _let_go(self, child: Child) -> None:
        """Ask a pool that is too many to leave: its participant, or its flow run while that has not shown itself."""
        if child.run is None:
            child.over = DONE
            return
        names = child.names(self.follower)
        new = [name for name in names or [child.run.id] if name not in child.asked_to_go]
        if new and names:
            self.outbox.append([Wanted(what="drain", target=name, reason="fewer pools are wanted") for name in new])
        elif new:
            self.launcher.cancel(child.run.id)
        if new:
            self.note(f"{child.spec.key}: asked to leave, fewer pools are wanted")
        child.asked_to_go.update(new)

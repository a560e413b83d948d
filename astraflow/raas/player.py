"""Which groups a pool is playing: started as leases and room allow, ended as commits or as ``Failed``.

Invariant: every lease that was started ends in exactly one of ``Committer.put``, a ``Failed`` fact, or, if it became
void or the pool died, in nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from astraflow.raas.commit import Committer
from astraflow.raas.evaluating import Exam, not_played, play_item
from astraflow.raas.facts import FactWriter
from astraflow.raas.group import Playing, play_group
from astraflow.raas.leases import Lease, Leases
from astraflow.raas.prefetch import Prefetch
from astraflow.rewards import ScoredProblem
from storage.errors import EpisodeError

HOPELESS = 20
"""So many groups in a row that the user's own code broke, and none played: its author must look."""
_OWN_CODE = ("workflow", "reward", "empty")


class Player:
    """Plays the leases of one pool. ``fatal`` gets the error that must end the pool."""

    def __init__(
        self,
        leases: Leases,
        writer: FactWriter,
        committer: Committer,
        *,
        capacity: int,
        may_start: Callable[[], bool],
    ) -> None:
        self.prefetch = Prefetch(capacity)
        self.tasks: dict[Lease, asyncio.Task[None]] = {}
        self.failed: Counter[str] = Counter()
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leases = leases
        self._writer = writer
        self._committer = committer
        self._capacity = capacity
        self._may_start = may_start
        self._playing: Playing | None = None
        self._problems: Sequence[ScoredProblem] = ()
        self._exams: Mapping[str, Exam] = {}
        self._broken_in_a_row = 0

    def prepare(
        self, playing: Playing, problems: Sequence[ScoredProblem], exams: Mapping[str, Exam] | None = None
    ) -> None:
        """From here on groups, and items of the evaluations ``exams``, can be started."""
        self._playing, self._problems, self._exams = playing, problems, exams or {}

    def start(self) -> None:
        """Start what waits and has room, if the pool may start anything."""
        playing = self._playing
        while playing and self._leases.waiting and len(self.tasks) < self._capacity and self._may_start():
            lease = self._leases.next()
            self.tasks[lease] = asyncio.create_task(self._play(lease, playing))

    def void(self, lease: Lease) -> None:
        """Stop playing a group whose lease is over; nobody waits for a word about it."""
        task = self.tasks.get(lease)
        if task is not None:
            self.failed["void"] += 1
            task.cancel()

    def hand_back(self, *, playing: bool) -> None:
        """Say that the leases which wait (and with ``playing`` those in play, which end) were not played."""
        leases = list(self._leases.waiting)
        self._leases.waiting.clear()
        if playing:
            leases += self.tasks
            for task in self.tasks.values():
                task.cancel()
        self.failed["drained"] += len(leases)
        self._writer.put(*(not_played(lease, "drained") for lease in leases))

    async def _play(self, lease: Lease, playing: Playing) -> None:
        """Play one group to its end; the end of an engine is the end of the pool."""
        try:
            if lease.evaluation:
                await self._examine(lease)
            else:
                began_s = time.monotonic()
                self._committer.put(await play_group(lease, self._problem(lease), playing))
                self.prefetch.played(lease.group, began_s, time.monotonic())
            self._broken_in_a_row = 0
        except EpisodeError as error:
            self._fail(lease, error)
        except Exception as error:  # noqa: BLE001 - the task's boundary: raised by whoever waits for the pool
            self._die(error)
        finally:
            del self.tasks[lease]
            self._leases.done(lease)
            if not self.tasks:
                self._committer.hurry()
            self.start()

    async def _examine(self, lease: Lease) -> None:
        """Play an item of an evaluation and say what it scored, once the versions that played are known."""
        exam = self._exams.get(lease.evaluation)
        if exam is None:
            raise EpisodeError(f"there is no evaluation {lease.evaluation!r}", kind="problem")
        result = await play_item(lease, exam)
        await self._committer.until_announced(result.high.items())
        self._writer.put(result)

    def _problem(self, lease: Lease) -> ScoredProblem:
        if not 0 <= lease.problem < len(self._problems):
            raise EpisodeError(
                f"there is no problem {lease.problem}, only {len(self._problems)}",
                where=f"lease of group {lease.group}",
                kind="problem",
            )
        return self._problems[lease.problem]

    def _fail(self, lease: Lease, error: EpisodeError) -> None:
        """Hand the group back with the reason."""
        self.failed[error.kind] += 1
        self._writer.put(not_played(lease, error.kind, str(error)[:500]))
        if error.kind in _OWN_CODE:
            self._broken_in_a_row += 1
            if self._broken_in_a_row >= HOPELESS and not self._committer.groups:
                self._die(error)

    def _die(self, error: Exception) -> None:
        if not self.fatal.done():
            self.fatal.set_exception(error)

"""What the flow runs of a run said: from Prefect's logs, or from the files that the local stack's flow runs write.

Both are polled: each poll gives the lines that were not given before. Prefect's logs come in batches and from many
processes, so each poll looks back a little and leaves out what it has given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from storage.errors import ServiceError
from storage.keys import RunKeys
from storage.store import ObjectStore

_PAGE = 200  # the most that Prefect gives at once
_LOOK_BACK = timedelta(seconds=30)
_BEGAN = re.compile(r" began at (\S+)$")  # as ``flows.lifecycle`` writes it


@dataclass(frozen=True, slots=True)
class Line:
    """One line (or message of several lines). ``flow`` is experiment, manager, trainer-NAME, pool-NAME or operator."""

    flow: str
    text: str
    time: str = ""
    level: str = ""


class Lines(Protocol):
    """A source of lines."""

    def poll(self) -> list[Line]:
        """What is new, in order."""
        ...


def is_meant(flow: str, wanted: str | None) -> bool:
    """``pool`` means every pool, ``pool-us`` one."""
    return wanted is None or flow == wanted or flow.startswith(f"{wanted}-")


class PrefectLines:
    """Through the server's API. To be made after ``Server.use``."""

    def __init__(self, store: str, run: str, wanted: str | None) -> None:
        self._store, self._run, self._wanted = store, run, wanted
        self._given: dict[str, datetime] = {}  # ids of lines of the last while
        self._since: datetime | None = None

    def poll(self) -> list[Line]:
        """Raises ``ServiceError`` if the server does not answer."""
        from tasks.prefect_api import reaching_prefect  # noqa: PLC0415  # prefect reads its settings at import

        with reaching_prefect(f"logs of {self._run}"):
            return self._poll()

    def _poll(self) -> list[Line]:
        import logging  # noqa: PLC0415

        from prefect.client.orchestration import get_client  # noqa: PLC0415
        from prefect.client.schemas.filters import (  # noqa: PLC0415
            FlowRunFilter,
            FlowRunFilterTags,
            LogFilter,
            LogFilterFlowRunId,
            LogFilterTimestamp,
        )
        from prefect.client.schemas.sorting import LogSort  # noqa: PLC0415

        from flows.children import store_tag  # noqa: PLC0415
        from tasks.prefect_api import read_all_flow_runs  # noqa: PLC0415

        lines: list[Line] = []
        with get_client(sync_client=True) as client:
            tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"run:{self._run}"]))
            own = store_tag(self._store)
            runs = {
                run.id: flow_of(run.tags, run.name)
                for run in read_all_flow_runs(client, tagged)
                if own in run.tags or not any(tag.startswith("store:") for tag in run.tags)
            }
            meant = [id for id, flow in runs.items() if is_meant(flow, self._wanted)]
            if not meant:
                return []
            since: Any = self._since - _LOOK_BACK if self._since else None  # Prefect's own kind of datetime will do
            after = LogFilterTimestamp(after_=since) if since else None
            wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=meant), timestamp=after)
            offset = 0
            while True:
                page = client.read_logs(wanted, limit=_PAGE, offset=offset, sort=LogSort.TIMESTAMP_ASC)
                for log in page:
                    if str(log.id) not in self._given and log.flow_run_id is not None:
                        self._given[str(log.id)] = log.timestamp
                        level = logging.getLevelName(log.level)
                        stamp = log.timestamp.isoformat(timespec="milliseconds")
                        lines.append(Line(runs[log.flow_run_id], log.message, stamp, level))
                offset += len(page)
                if len(page) < _PAGE:
                    break
        self._forget()
        return lines

    def _forget(self) -> None:
        self._since = max(self._given.values(), default=None)
        if self._since is not None:
            oldest = self._since - 2 * _LOOK_BACK
            self._given = {id: time for id, time in self._given.items() if time >= oldest}


def flow_of(tags: list[str], name: str) -> str:
    """What a flow run is called in logs: a child by its tag, others by name (``RUN/experiment``, ``RUN/pause``)."""
    child = next((tag.removeprefix("child:") for tag in tags if tag.startswith("child:")), None)
    return child or ("experiment" if name.rpartition("/")[2] == "experiment" else "operator")


@dataclass(slots=True)
class FileLines:
    """From the log files of a local stack: all that the processes wrote, tracebacks of their death too."""

    store: ObjectStore
    run: str
    wanted: str | None
    folder: Path
    _places: dict[Path, int] = field(default_factory=dict)
    _begun: dict[Path, str] = field(default_factory=dict)

    def poll(self) -> list[Line]:
        """Raises ``ServiceError`` if this stack has no file of the run."""
        lines: list[Line] = []
        for path, flow in self._files():
            if not is_meant(flow, self.wanted):
                continue
            with path.open("rb") as file:
                file.seek(self._places.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # the rest of a line comes later
            self._places[path] = self._places.get(path, 0) + len(whole)
            lines += [Line(flow, text) for text in whole.decode(errors="replace").splitlines() if text.strip()]
        return lines

    def _files(self) -> Iterator[tuple[Path, str]]:
        """Of every participant that ever beat, in the order in which they began."""
        prefix = RunKeys(self.run).statuses
        names = [info.key.removeprefix(prefix).removesuffix(".json") for info in self.store.list(prefix)]
        found = [(self.folder / f"{name}.log", flow_of_participant(name)) for name in names]
        there = [(path, flow) for path, flow in found if path.is_file()]
        if not there:
            raise ServiceError(
                f"there are no logs of {self.run} here",
                where=str(self.folder),
                remedy="They are on the machine that runs it, and in its Prefect server's pages",
                kind="no_logs",
            )
        yield from sorted(there, key=lambda item: self._began(item[0]))

    def _began(self, path: Path) -> str:
        """When a file was begun, by its first line; of a file without it, when it was first seen to have changed."""
        if path not in self._begun:
            with path.open(encoding="utf-8", errors="replace") as file:
                first = _BEGAN.search(file.readline())
            changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="microseconds")
            self._begun[path] = first[1] if first else changed
        return self._begun[path]


def flow_of_participant(participant: str) -> str:
    """``trainer-solver-3f2a9c11-2`` -> ``trainer-solver``: a name of eight letters or of digits stays."""
    return re.sub(r"-[0-9a-f]{8}(-\d+)?$", "", participant)

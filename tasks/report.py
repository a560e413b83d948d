"""How a run shows in Prefect: its live page, trainers' progress, tables of pools and load reports, final figures.

All are written by the experiment, from the store; each is one artifact that is updated in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from storage.errors import AstraFlowError
from tasks.artifacts import LiveArtifact, artifact_key, artifact_url
from tasks.load_reports import LoadReports

if TYPE_CHECKING:
    from astraflow.follow import RunFollower


@task(name="final figures", retries=0, cache_policy=NO_CACHE)
def final_figures(run: str, store: str) -> dict[str, Any]:
    """The run's figures from what the store holds."""
    from astraflow import open_run  # noqa: PLC0415  # brings pyarrow and duckdb: only needed here

    figures: dict[str, Any] = json.loads(open_run(f"{store}/{run}").figures().to_json())
    return figures


class RunPage:
    """Everything of a run that Prefect's pages show. No fault of it ever ends a run."""

    def __init__(self, view: RunFollower, note: Callable[[str], None] = lambda _: None) -> None:
        from astraflow import open_run  # noqa: PLC0415  # as above

        config = view.config
        self._view, self._note = view, note
        self._faults: dict[str, str] = {}
        self._run = open_run(f"{config.store}/{config.name}")
        own, about = flow_run.id, f"The run {config.name} as it goes"
        self._page = LiveArtifact("markdown", key=artifact_key("run", config.name), flow_run=own, description=about)
        self._pools = LiveArtifact(
            "table", key=artifact_key("pools", config.name), flow_run=own, description=f"Pools of {config.name}"
        )
        self._loads = LoadReports(self._run, own)
        self._of_children: dict[tuple[str, str], LiveArtifact] = {}

    def write(self, flow_runs: Mapping[str, str], events: Sequence[str] = (), *, state: str = "") -> None:
        """Bring everything up to date. ``flow_runs`` are the present ones of the run's children, by ``role-name``.

        Raises nothing: what goes wrong is noted, once as long as it stays the same.
        """
        if self._guard("the run could not be read for its page", self._run.refresh):
            self._guard("the run's page could not be drawn", lambda: self._write(flow_runs, events, state))
            self._guard("the load reports could not be told", self._write_loads)

    def _guard(self, what: str, write: Callable[[], object]) -> bool:
        """Whether it went well."""
        try:
            write()
        except Exception as error:  # noqa: BLE001  # a page is for the eye: whatever it meets, the run goes on
            fault = str(error) if isinstance(error, AstraFlowError) else f"{type(error).__name__}: {error}"
            if fault != self._faults.get(what):
                self._note(f"{what}: {fault}")
            self._faults[what] = fault
            return False
        self._faults.pop(what, None)
        return True

    def _write(self, flow_runs: Mapping[str, str], events: Sequence[str], state: str) -> None:
        from astraflow.pages.page import page  # noqa: PLC0415  # as above
        from astraflow.pages.regions import pools  # noqa: PLC0415  # as above

        before = self._page.id
        if not self._page.write(page(self._run, self._view, state=state, events=events)):
            return  # the server is away: nothing else need wait for it too
        if self._page.id is not None and self._page.id != before:
            self._note(f"the run's live page: {artifact_url(self._page.id)}")
        self._pools.write(json.dumps(pools(self._run, self._view)))
        for child, id in flow_runs.items():
            self._link(child, id)
        for policy in self._view.policies:
            if f"trainer-{policy}" in flow_runs:
                self._write_progress(policy, flow_runs[f"trainer-{policy}"])

    def _write_loads(self) -> None:
        before = self._loads.table.id
        self._loads.write()
        if self._loads.table.id is not None and self._loads.table.id != before:
            self._note(f"the run's load reports: {artifact_url(self._loads.table.id)}")

    def _link(self, child: str, id: str) -> None:
        """On the flow run of each child, the way to the run's page and to its load reports."""
        if self._page.id is None:
            return
        made = self._of_children.setdefault((child, id), LiveArtifact("markdown", key=None, flow_run=id))
        way = f"[{self._view.config.name}: the run's live page]({artifact_url(self._page.id)})"
        if self._loads.table.id is not None:
            way += f", [its load reports]({artifact_url(self._loads.table.id)})"
        made.write(way, f"{child}: to the run's live page")

    def _write_progress(self, policy: str, id: str) -> None:
        total = self._view.config.trainer_of(policy).steps
        steps = self._run.fold.consumed.get(policy, -1) + 1
        made = self._of_children.setdefault(
            ("progress-" + policy, id),
            LiveArtifact("progress", key=artifact_key("trainer", self._view.config.name, policy), flow_run=id),
        )
        made.write(round(100 * steps / total, 1), f"{policy}: step {steps} of {total}")

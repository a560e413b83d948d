"""Tasks and artifacts that show a run in Prefect: one live page, updated in place, and the final figures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from astraflow.report import markdown_figures
from storage.errors import ServiceError
from tasks.prefect_api import reaching_prefect


@task(name="final figures", retries=0, cache_policy=NO_CACHE)
def final_figures(run: str, store: str) -> dict[str, Any]:
    """The run's figures from what the store holds."""
    from astraflow import open_run  # noqa: PLC0415  # brings pyarrow and duckdb: only needed here

    figures: dict[str, Any] = json.loads(open_run(f"{store}/{run}").figures().to_json())
    return figures


class RunPage:
    """The run's markdown artifact: created at the first write, then updated in place (no version a write)."""

    def __init__(self, run: str) -> None:
        self._key = f"run-{run}".replace("_", "-")
        self._id: UUID | None = None

    def write(self, text: str) -> None:
        """Show ``text`` as the run's page; not shown while the server is away, since it is for the eye only."""
        with contextlib.suppress(ServiceError), reaching_prefect("the run's page"):
            self._write(text)

    def _write(self, text: str) -> None:
        if self._id is None:
            created = create_markdown_artifact(text, key=self._key, description="The run as it goes")
            self._id = cast("UUID", created)  # a coroutine only where a loop runs
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._id, ArtifactUpdate(data=text))

    def finish(self, text: str, figures: Mapping[str, object]) -> None:
        """The last page: the end state and the final figures."""
        self.write(text + "\n" + markdown_figures("Figures", figures).replace("# ", "## ", 1))

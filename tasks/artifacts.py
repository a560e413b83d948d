"""Artifacts that are updated in place: one object in Prefect however often it is written, never one a version."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from httpx import HTTPStatusError, codes
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_UI_URL

from storage.errors import ServiceError
from tasks.prefect_api import reaching_prefect


class LiveArtifact:
    """One artifact of a flow run, made at the first write, and anew if somebody has deleted it.

    For the eye only: a server that is away is passed over; one that refuses is the caller's (``HTTPStatusError``).

    ``kind`` is Prefect's: ``markdown``, ``progress`` (a percentage) or ``table`` (JSON text of rows). Without a key it
    is shown on its flow run alone.
    """

    def __init__(self, kind: str, *, key: str | None, flow_run: str | None, description: str = "") -> None:
        self._new = ArtifactCreate(
            key=key, type=kind, description=description or None, flow_run_id=UUID(flow_run) if flow_run else None
        )
        self.id: UUID | None = None  # once it was written
        self._last: tuple[Any, str] | None = None

    def write(self, data: Any, description: str = "") -> bool:
        """Show ``data``; the same again costs nothing. False if the server is away."""
        if (data, description) == self._last:
            return True
        with contextlib.suppress(ServiceError), reaching_prefect("an artifact"), get_client(sync_client=True) as client:
            if self.id is None or not self._update(client, self.id, data, description):
                said = description or self._new.description
                self.id = client.create_artifact(self._new.model_copy(update={"data": data, "description": said})).id
            self._last = (data, description)
        return self._last == (data, description)

    def _update(self, client: SyncPrefectClient, id: UUID, data: Any, description: str) -> bool:
        """Write it in place; False if somebody has deleted it."""
        update = ArtifactUpdate(data=data, description=description) if description else ArtifactUpdate(data=data)
        try:
            client.update_artifact(id, update)
        except (ObjectNotFound, HTTPStatusError) as error:
            if isinstance(error, HTTPStatusError) and error.response.status_code != codes.NOT_FOUND:
                raise
            return False
        return True


def artifact_key(*words: str) -> str:
    """Words as a key of Prefect's: lower-case letters, digits and dashes."""
    return "-".join(words).replace("_", "-")


def artifact_url(id: UUID) -> str:
    """Where a browser finds an artifact; a path alone where the server's address is not known."""
    return f"{(PREFECT_UI_URL.value() or '').rstrip('/')}/artifacts/artifact/{id}"

"""A Prefect server that does not answer: the terminal goes by the store, and says so where it cannot."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from astraflow.config import RunConfig
from infra.launch import Launched, cancel, flow_run_state, launch, raise_if_dead
from infra.places import Server
from storage.errors import ServiceError

LAUNCHED = Launched(str(uuid.uuid4()), "http://127.0.0.1/runs/x")
CONFIG = RunConfig.model_validate(
    {"name": "x", "policies": {"solver": {"model": "tiny-qwen3"}}, "problems": {"source": "addition"}}
)


@pytest.fixture(autouse=True)
def closed_port() -> Iterator[str]:
    """The URL of an API that nobody serves."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets it, and connections are refused
        url = f"http://127.0.0.1:{held.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            yield url


def test_the_state_is_unknown_and_nobody_is_called_dead() -> None:
    assert flow_run_state(LAUNCHED) == "UNKNOWN"
    raise_if_dead(LAUNCHED, "x", exists=True)


def test_what_needs_the_server_is_an_error_with_a_remedy(closed_port: str) -> None:
    for ask in (lambda: cancel(LAUNCHED), lambda: launch(Server(closed_port, is_local=True), CONFIG, resume=False)):
        with pytest.raises(ServiceError) as caught:
            ask()
        assert (caught.value.kind, caught.value.exit_code) == ("unreachable", 4)

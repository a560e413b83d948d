"""Fixtures that several packages' tests share: S3 servers and what points at them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from infra.azure_server import AzureServer, find_azurite
from infra.azure_server import azure_server as run_azure_server
from infra.s3_server import S3Server
from infra.s3_server import s3_server as run_s3_server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS server for the whole session."""
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    """moto's S3: quick to start, but it accepts any secret."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield S3Server(f"http://{host}:{port}", "moto-key", "moto-secret")
    finally:
        server.stop()


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """An Azurite server for the whole session, where it is installed."""
    if find_azurite() is None:
        pytest.skip("Azurite is not installed: make azurite")
    with run_azure_server(tmp_path_factory.mktemp("azure") / "azurite.log") as server:
        yield server


@pytest.fixture
def s3_env(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The AWS_* variables of the server, set for this test and its child processes."""
    return _set(s3_server, monkeypatch)


@pytest.fixture
def moto_env(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The same for moto."""
    return _set(moto_server, monkeypatch)


@pytest.fixture
def s3_store_url(s3_server: S3Server, s3_env: dict[str, str]) -> str:
    """An empty store: a new prefix in one bucket, since the server sets volumes aside for each bucket."""
    return f"{s3_server.create_bucket('tests')}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def moto_store_url(moto_server: S3Server, moto_env: dict[str, str]) -> str:
    """The same in moto."""
    return f"{moto_server.create_bucket('tests')}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def azure_store_url(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store in Azurite, and the variables that lead to it."""
    for name, value in azure_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{azure_server.create_container('tests')}/{uuid.uuid4().hex[:12]}"


def _set(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.environment

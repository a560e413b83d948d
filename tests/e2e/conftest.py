"""One local stack for all end-to-end tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.s3_server import S3Server
from tests.e2e import region
from tests.e2e.runs import RunUnderTest, write_recipes
from tests.e2e.stack import LocalStack, Shell, local_stack


@pytest.fixture(scope="session")
def session_stack(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[LocalStack]:
    """Server and runner, which can also reach the S3 server; a region's deployments are registered."""
    folder = tmp_path_factory.mktemp("e2e")
    write_recipes(folder)
    (folder / "far.toml").write_text(region.RECIPE)
    with local_stack(folder, s3_server.environment) as stack:
        yield stack


@pytest.fixture
def stack(session_stack: LocalStack) -> LocalStack:
    """The session's stack, started again where a test before has killed some of it."""
    for armed in session_stack.kill_folder.iterdir():
        armed.unlink()
    session_stack.up()
    return session_stack


@pytest.fixture
def started(stack: LocalStack) -> Iterator[list[RunUnderTest]]:
    """Runs of a test that end with it, should it fail half-way."""
    runs: list[RunUnderTest] = []
    yield runs
    for run in runs:
        run.abandon()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder without a stack."""
    return Shell(tmp_path)

"""One Prefect server for the tests of this folder."""

from collections.abc import Iterator

import pytest
from prefect.testing.utilities import prefect_test_harness


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A temporary server with the local deployments."""
    from infra.deployments import local_deployments

    with prefect_test_harness(server_startup_timeout=120):
        for deployment in local_deployments():
            deployment.apply()
        yield

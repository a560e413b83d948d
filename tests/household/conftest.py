"""Real games, with the Python that ``make test-household`` makes; elsewhere they are not collected."""

from __future__ import annotations

import os

import pytest

from tests.workflows.conftest import anyio_backend, chatml, stage

PYTHON = os.environ.get("ASTRAFLOW_HOUSEHOLD_PYTHON", "")
collect_ignore_glob = [] if PYTHON else ["test_*.py"]
__all__ = ["anyio_backend", "chatml", "stage"]


@pytest.fixture(scope="session")
def household_python() -> str:
    return PYTHON

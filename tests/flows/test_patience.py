"""Which faults an experiment waits out, and for how long."""

import httpx
import pytest

from flows.patience import PATIENCE_S, Patience
from storage.errors import DataError, ServiceError, StoreError
from tasks.prefect_api import reaching_prefect


def test_passing_faults_are_borne_until_the_deadline() -> None:
    now, notes = [0.0], []
    patience = Patience(notes.append, clock=lambda: now[0])
    for error in (StoreError("down", kind="unreachable"), ServiceError("away", kind="unreachable")):
        with patience:
            raise error
    now[0] = PATIENCE_S - 1
    with patience:
        raise StoreError("down", kind="unreachable")
    assert len(notes) == 2
    with patience:
        pass  # it is back: the next fault has all the time again
    now[0] = PATIENCE_S + 1
    with patience:
        raise StoreError("down", kind="unreachable")
    now[0] = 2 * PATIENCE_S + 2
    with pytest.raises(StoreError), patience:
        raise StoreError("down", kind="unreachable")


def test_while_the_run_gets_on_the_deadline_moves() -> None:
    now, steps = [0.0], [0]
    patience = Patience(lambda text: None, clock=lambda: now[0], progress=lambda: steps[0])
    away = ServiceError("away", kind="unreachable")
    for _ in range(5):
        now[0] += PATIENCE_S - 1
        steps[0] += 1
        with patience:
            raise away
    now[0] += PATIENCE_S - 1
    with patience:
        raise away
    now[0] += 1
    with pytest.raises(ServiceError), patience:
        raise away


@pytest.mark.parametrize(
    "error", [StoreError("no", kind="denied"), DataError("bad"), ServiceError("x", kind="restarts")]
)
def test_other_errors_go_through(error: Exception) -> None:
    with pytest.raises(type(error)), Patience(lambda text: None):
        raise error


def status_error(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/api")
    return httpx.HTTPStatusError(f"status {code}", request=request, response=httpx.Response(code, request=request))


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ConnectionResetError(), status_error(503)]
)
def test_a_server_that_is_away(error: Exception) -> None:
    with pytest.raises(ServiceError) as caught, reaching_prefect("here"):
        raise error
    assert (caught.value.kind, caught.value.where) == ("unreachable", "here")


@pytest.mark.parametrize("error", [status_error(422), RuntimeError("other"), ValueError("x")])
def test_a_server_that_refuses(error: Exception) -> None:
    with pytest.raises(type(error)), reaching_prefect("here"):
        raise error

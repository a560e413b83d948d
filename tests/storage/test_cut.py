"""A line to S3 that is cut: every call ends in bounded time with the error it should, and the next one gets through."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from infra.s3_server import S3Server
from storage import open_store, s3_filesystem
from storage.errors import StoreError
from storage.filesystem import open_filesystem
from tests.line import Cut, Line, line

pytestmark = pytest.mark.s3


@pytest.fixture
def between(s3_server: S3Server, s3_store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The line to the server, which the environment names instead of the server itself."""
    near = urlsplit(s3_server.endpoint)
    with line(str(near.hostname), int(near.port or 80)) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.endpoint)
        yield between


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_store_that_is_cut_off_says_so_and_answers_once_it_is_there(
    how: Cut, between: Line, s3_store_url: str
) -> None:
    store = open_store(s3_store_url)
    store.put("a", b"before")
    assert store.get("a") == b"before"
    between.cut(how)
    with pytest.raises(StoreError) as caught:
        store.get("a")
    assert caught.value.kind == "unreachable"
    between.mend()
    assert store.get("a") == b"before", "by a new connection: the router has forgotten the old ones"


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_filesystem_that_is_cut_off_says_so_as_a_filesystem_does(
    how: Cut, between: Line, s3_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_filesystem, "READ_TIMEOUT_S", 0.5)
    monkeypatch.setattr(s3_filesystem, "ATTEMPTS", 2)
    files, root = open_filesystem(s3_store_url)
    files.pipe_file(f"{root}/a", b"before")
    between.cut(how)
    for call in (
        lambda: files.cat_file(f"{root}/a"),
        lambda: files.pipe_file(f"{root}/b", b"1"),
        lambda: files.find(root),
    ):
        with pytest.raises(OSError, match="S3 gave no answer"):
            call()
    between.mend()
    assert files.cat_file(f"{root}/a") == b"before"

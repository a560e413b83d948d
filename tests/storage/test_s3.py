"""What S3 says when things are wrong, in the store's words: kind, remedy, no secrets, in bounded time."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from infra.s3_server import S3Server
from storage import Created, open_store
from storage.errors import NotFound, StoreError
from storage.probe import check_store
from storage.s3 import S3Store
from storage.store import ObjectStore
from tests.storage.answering import Answer, Answering, answering, six_verbs

SECRET = "wrong-secret-0123456789"


@pytest.fixture(autouse=True)
def only_these_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile or role of the machine plays a part."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@contextmanager
def endpoint(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """An S3 endpoint that gives every request the same answer; yields the server."""
    with answering(answer, f"the text {SECRET}") as server:
        point_at(server.url, monkeypatch)
        yield server


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def verbs(store: ObjectStore) -> list[Callable[[], object]]:
    assert isinstance(store, S3Store)
    return six_verbs(store)


@pytest.mark.parametrize(
    ("answer", "kind", "remedy"),
    [
        ((403, "InvalidAccessKeyId"), "denied", "AWS_ACCESS_KEY_ID"),
        ((403, "SignatureDoesNotMatch"), "denied", "AWS_SECRET_ACCESS_KEY"),
        ((400, "ExpiredToken"), "denied", "AWS_SESSION_TOKEN"),
        ((403, "AccessDenied"), "denied", "read, write, list and delete on bucket 'bucket'"),
        ((401, ""), "denied", "bucket 'bucket'"),
        ((403, "RequestTimeTooSkewed"), "denied", "clock"),
        ((400, "AuthorizationHeaderMalformed"), "denied", "AWS_REGION"),
        ((404, "NoSuchBucket"), "no_bucket", "Make the bucket"),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, answer: Answer, kind: str, remedy: str) -> None:
    with endpoint(answer, monkeypatch) as server:
        store = open_store("s3://bucket/prefix")
        for verb in verbs(store):
            with pytest.raises(StoreError) as caught:
                verb()
            assert caught.value.kind == kind
            assert remedy in caught.value.remedy
            assert caught.value.where.startswith("s3://bucket/prefix/a/")
            assert SECRET not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__!r}"
        assert len(server.seen) == 6, "a refusal is not retried"
        assert all("/bucket" in path for _, path, _ in server.seen), "path-style addresses"


def test_missing_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint((404, "NoSuchKey"), monkeypatch):
        store = open_store("s3://bucket")
        with pytest.raises(NotFound):
            store.get("x")
        with pytest.raises(NotFound):
            store.get_range("x", 0, 0)
        store.delete("x")


@pytest.mark.parametrize("status", [412, 409])
def test_conflicts_say_existed(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with endpoint((status, "PreconditionFailed" if status == 412 else "ConditionalRequestConflict"), monkeypatch):
        assert open_store("s3://bucket").create("x", b"1") is Created.EXISTED


def test_what_a_server_does_not_implement_makes_it_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint((501, "NotImplemented"), monkeypatch), pytest.raises(StoreError) as caught:
        open_store("s3://bucket").create("x", b"1")
    assert caught.value.kind == "unsafe"


@pytest.mark.parametrize("answer", [(503, "SlowDown"), (500, "InternalError")])
def test_overload_is_retried_then_unreachable(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    with endpoint(answer, monkeypatch) as server, pytest.raises(StoreError) as caught:
        open_store("s3://bucket").get("x")
    assert caught.value.kind == "unreachable"
    assert answer[1] in str(caught.value)
    assert len(server.seen) > 3


def test_a_server_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint((200, ""), monkeypatch), pytest.raises(StoreError) as caught:
        check_store(open_store("s3://bucket"), tries=1)
    assert caught.value.kind == "unsafe"


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        point_at(url, monkeypatch)
        with pytest.raises(StoreError) as caught:
            open_store("s3://bucket/p").put("x", b"1")
    assert caught.value.kind == "unreachable"
    assert url in caught.value.remedy


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        point_at(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        with pytest.raises(StoreError) as caught:
            open_store("s3://bucket/p").create("x", b"1")
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize("size_bytes", [0, 1 << 20, (1 << 20) + 1, 16 << 20, (16 << 20) + 1])
def test_every_size_has_its_way(moto_store_url: str, size_bytes: int) -> None:
    store, data = open_store(moto_store_url), bytes(size_bytes)
    store.put("put", data)
    assert store.create("created", data) is Created.CREATED
    assert store.get("put") == store.get("created") == data


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket")
    assert caught.value.kind == "denied"
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_half_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket")
    assert caught.value.kind == "denied"


@pytest.mark.s3
@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_at_a_real_server(s3_store_url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    store = open_store(s3_store_url)
    for verb in verbs(store):
        with pytest.raises(StoreError) as caught:
            verb()
        assert caught.value.kind == "denied"
        assert name in caught.value.remedy
        assert SECRET not in str(caught.value)


@pytest.mark.s3
def test_a_missing_bucket_at_a_real_server(s3_env: dict[str, str]) -> None:
    store = open_store("s3://there-is-no-such-bucket/p")
    with pytest.raises(StoreError) as caught:
        store.get("x")
    assert caught.value.kind == "no_bucket"


def test_a_missing_bucket_at_moto(moto_env: dict[str, str]) -> None:
    store = open_store("s3://there-is-no-such-bucket/p")
    for verb in verbs(store):
        with pytest.raises(StoreError) as caught:
            verb()
        assert caught.value.kind == "no_bucket"


def test_the_s3_endpoint_wins_over_the_general_one(
    moto_server: S3Server, moto_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_server.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = open_store(moto_store_url)
    store.put("x", b"1")
    assert store.get("x") == b"1"


def test_without_a_prefix_the_bucket_is_the_root(moto_store_url: str) -> None:
    bucket, _, prefix = moto_store_url.removeprefix("s3://").partition("/")
    open_store(moto_store_url).put("x", b"1")
    root = open_store(f"s3://{bucket}/")
    assert root.url == f"s3://{bucket}"
    assert root.get(f"{prefix}/x") == b"1"
    assert f"{prefix}/x" in [info.key for info in root.list("")]
    assert [info.key for info in root.list(prefix[:-1])] == [f"{prefix}/x"]

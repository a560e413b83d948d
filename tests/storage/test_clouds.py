"""Azure and Google: what is wrong with a URL, the environment or the server, in the store's words; no secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from infra.azure_server import AzureServer
from storage import Created, open_store
from storage.bucket import _translated
from storage.errors import ConfigError, NotFound, StoreError
from storage.google import GoogleStore
from storage.location import Location
from tests.storage.answering import Answering, answering, six_verbs

SECRET = "d3Jvbmcgc2VjcmV0IDAxMjM0NTY3ODk="


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """A server in Google's place."""
    with answering((200, ""), SECRET) as server:
        monkeypatch.setenv("GOOGLE_STORAGE_ENDPOINT", server.url)
        yield server


def test_urls() -> None:
    for url, canonical in (("azure://c/p/", "az://c/p"), ("gcs://b", "gs://b"), ("gs://b/p", "gs://b/p")):
        assert Location.parse(url).url == canonical
    for url in ("az://user:key@c/p", "gs://user@b"):
        with pytest.raises(ConfigError) as caught:
            Location.parse(url)
        assert "key" not in str(caught.value).replace("ACCOUNT_KEY", "")


def test_azure_without_an_account() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("az://container/prefix")
    assert (caught.value.kind, caught.value.where) == ("denied", "az://container/prefix")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.remedy


def test_azure_refuses_a_wrong_key_and_knows_no_such_container(
    azure_store_url: str, azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError) as caught:
        open_store("az://nothere/x").put("a", b"")
    assert caught.value.kind == "no_bucket"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    for verb in six_verbs(open_store(azure_store_url)):
        with pytest.raises(StoreError) as caught:
            verb()
        assert caught.value.kind == "denied" and "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.remedy
        assert SECRET not in f"{caught.value!s}{caught.value!r}"


def test_google_creates_only_where_nothing_is(google: Answering) -> None:
    store = open_store("gs://bucket/prefix")
    assert store.create("a/x", b"1") is Created.CREATED
    ((verb, path, headers),) = google.seen
    assert (verb, path) == ("PUT", "/bucket/prefix%2Fa%2Fx")
    assert headers["x-goog-if-generation-match"] == "0"
    google.answer = (412, "PreconditionFailed")
    assert store.create("a/x", b"1") is Created.EXISTED


@pytest.mark.parametrize(
    ("answer", "kind", "remedy"),
    [
        ((401, "AuthenticationRequired"), "denied", "GOOGLE_APPLICATION_CREDENTIALS"),
        ((403, "AccessDenied"), "denied", "Storage Object Admin on bucket 'bucket'"),
        ((404, "NoSuchBucket"), "no_bucket", "Make the bucket"),
    ],
)
def test_google_refuses(google: Answering, answer: tuple[int, str], kind: str, remedy: str) -> None:
    google.answer = answer
    for verb in six_verbs(open_store("gs://bucket/prefix")):
        with pytest.raises(StoreError) as caught:
            verb()
        assert caught.value.kind == kind and remedy in caught.value.remedy
        assert SECRET not in f"{caught.value!s}{caught.value!r}"


def test_google_misses_an_object(google: Answering) -> None:
    google.answer = (404, "NoSuchKey")
    store = open_store("gs://bucket")
    with pytest.raises(NotFound):
        store.get("x")
    store.delete("x")


def test_a_machine_without_any_credentials_is_told_where_they_are_looked_for() -> None:
    """What the client says where no key is set and the machine has no role."""
    error = GenericError(
        "Generic GCS error: Error performing token request: Error performing GET http://169.254.169.254/"
    )
    with pytest.raises(StoreError) as caught, _translated("gs://b/x", "b", GoogleStore("b")._provider):
        raise error
    assert caught.value.kind == "denied" and "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.remedy


def test_google_s_credentials_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_STORAGE_ENDPOINT", raising=False)
    (tmp_path / "key.json").write_text(f'{{"private_key": "{SECRET}"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(StoreError) as caught:
        open_store("gs://bucket/x")
    assert caught.value.kind == "denied" and "gcloud" in caught.value.remedy
    assert SECRET not in f"{caught.value!s}{caught.value!r}"

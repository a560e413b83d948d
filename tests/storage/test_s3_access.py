"""One process uses buckets of several servers, regions and accounts: a URL says which, the environment the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.s3_server import S3Server
from storage import open_store, uploads
from storage.errors import NotFound, StoreError
from storage.filesystem import open_filesystem
from storage.location import Location
from storage.s3_access import S3Access
from storage.s3_filesystem import open_s3_filesystem
from storage.uploads import unfinished
from tests.storage.answering import Answering, answering

CONFIG = """
[profile west]
region = us-west-9
aws_access_key_id = WESTKEY
aws_secret_access_key = west-secret
endpoint_url = {url}
[profile bare]
aws_access_key_id = BAREKEY
aws_secret_access_key = bare-secret
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials, region and a server where nobody listens, which a URL must be able to replace."""
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "HOMEKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "home-secret")
    monkeypatch.setenv("AWS_REGION", "home-1")


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    return file


def signed_by(server: Answering) -> str:
    """Key and region of the last request's signature."""
    _, path, headers = server.seen[-1]
    assert path.startswith("/bucket"), "the options are no part of the address"
    key, _, region = headers["authorization"].partition("Credential=")[2].split("/")[:3]
    return f"{key} {region}"


@pytest.mark.parametrize(
    ("query", "signed"),
    [
        ("?endpoint={url}", "HOMEKEY home-1"),
        ("?endpoint={url}&region=us-west-2", "HOMEKEY us-west-2"),
        ("?profile=west", "WESTKEY us-west-9"),
        ("?profile=west&region=us-west-2", "WESTKEY us-west-2"),
        ("?profile=bare&endpoint={url}", "BAREKEY us-east-1"),  # the environment's region is not its
    ],
)
def test_the_url_says_who_asks_whom(profiles: Path, query: str, signed: str) -> None:
    with answering((404, "NoSuchKey"), "none") as server:
        profiles.write_text(CONFIG.format(url=server.url))
        store = open_store(f"s3://bucket/runs{query.format(url=server.url)}")
        with pytest.raises(NotFound) as caught:
            store.get("a")
        assert signed_by(server) == signed
        assert caught.value.where == "s3://bucket/runs/a"
        assert open_store(store.url).url == store.url, "a record's name of the store opens it again"
        server.answer = (403, "AccessDenied")
        with pytest.raises(StoreError, match="AccessDenied"):
            unfinished(store, "run/")
        assert signed_by(server) == signed


def test_a_profile_that_is_not_here_is_named(profiles: Path) -> None:
    profiles.write_text("")
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket/runs?profile=west")
    assert (caught.value.kind, caught.value.where) == ("denied", "s3://bucket/runs")
    assert "no AWS profile 'west'" in caught.value.what and "~/.aws/config" in caught.value.remedy


def test_all_clients_ask_the_same_server(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile without an endpoint means AWS itself, also where the environment names another server, and so does a
    machine whose own profile names one."""
    profiles.write_text(CONFIG.format(url="http://127.0.0.1:9") + "[default]\nendpoint_url = http://127.0.0.1:7\n")
    for query, environment, asked in (
        ("?profile=bare", "http://127.0.0.1:9", "amazonaws.com"),
        ("", "http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("", "", "http://127.0.0.1:7"),
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", environment)
        location = Location.parse(f"s3://bucket/runs{query}")
        assert asked in uploads._client(location).meta.endpoint_url
        endpoint = S3Access.of(dict(location.options), where="").endpoint
        assert endpoint == ("" if asked == "amazonaws.com" else asked)
        if not query:
            filesystem = open_s3_filesystem()
            filesystem.connect()
            assert asked in filesystem.s3.meta.endpoint_url


def test_libraries_that_want_files_find_the_same_place(moto_server: S3Server) -> None:
    bucket = moto_server.create_bucket("tests")
    store = open_store(f"{bucket}/with-options?endpoint={moto_server.endpoint}")
    store.put("run/x.txt", b"rows")
    filesystem, root = open_filesystem(store.url)
    assert filesystem.cat_file("/".join(part for part in (root, "run/x.txt") if part)) == b"rows"
    assert [info.key for info in store.list("run/")] == ["run/x.txt"]

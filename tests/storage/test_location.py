"""What a store URL names, and that secrets in it are neither kept nor shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import open_store
from storage.errors import ConfigError
from storage.location import Location


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("/data/runs", "file:///data/runs"),
        ("/data/runs/", "file:///data/runs"),
        ("file:///data/runs/", "file:///data/runs"),
        ("file:///data/a%20b", "file:///data/a%20b"),
        ("/data/a b", "file:///data/a%20b"),
        ("file:///", "file:///"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("S3://bucket/a", "s3://bucket/a"),
        ("s3://bucket/a/?region=us-west-2", "s3://bucket/a?region=us-west-2"),
        ("s3://bucket?region=r&endpoint=http%3A//h:1/", "s3://bucket?endpoint=http://h:1&region=r"),
        ("memory://x", "memory://x"),
        ("gs://bucket/a/", "gs://bucket/a"),
    ],
)
def test_canonical_urls(url: str, canonical: str) -> None:
    location = Location.parse(url)
    assert location.url == canonical
    assert Location.parse(location.url) == location


def test_relative_and_home_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert Location.parse("runs").path == tmp_path / "runs"
    assert Location.parse("~/runs").path == Path("/home/someone/runs")


def test_bucket_and_prefix() -> None:
    location = Location.parse("s3://bucket/a/b")
    assert (location.bucket, location.prefix) == ("bucket", "a/b")
    assert Location.parse("s3://bucket").prefix == ""


@pytest.mark.parametrize("url", ["", "file:", "file://", "file://host/a", "file:a", "s3://", "s3:///", "memory://"])
def test_what_names_no_store(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert caught.value.kind == "store_url"
    assert "s3://bucket/prefix" in caught.value.remedy


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("s3://key:hunter2@bucket/prefix")
    assert "hunter2" not in f"{caught.value!s}{caught.value!r}"
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.remedy


def test_what_an_s3_url_may_say_besides() -> None:
    location = Location.parse("s3://bucket/a/b?profile=west&region=us-west-2")
    assert (location.bucket, location.prefix) == ("bucket", "a/b")
    assert location.options == (("profile", "west"), ("region", "us-west-2"))


@pytest.mark.parametrize("query", ["a=b", "region=", "region", "region=a&region=b", "profile=x&key=y", "&"])
def test_what_it_may_not_say(query: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(f"s3://bucket/a?{query}")
    assert (caught.value.kind, "endpoint, profile, region" in caught.value.what) == ("store_url", True)


def test_credentials_in_an_endpoint_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("s3://bucket?endpoint=https://key:hunter2@host")
    assert "hunter2" not in f"{caught.value!s}{caught.value!r}"


def test_other_urls_are_shown_without_credentials() -> None:
    location = Location.parse("sftp://user:hunter2@host/folder")
    assert location.shown == "sftp://host/folder"
    assert Location.parse("/a").shown == "file:///a"

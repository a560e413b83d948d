"""The local S3 server keeps its folder: the same endpoint and objects after a restart; failures show its log."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infra import s3_server as module
from infra.s3_server import s3_server
from storage import open_store
from storage.errors import DeadlineError, ServiceError


@pytest.mark.s3
def test_a_restart_keeps_endpoint_and_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    with s3_server(tmp_path) as first:
        for name, value in first.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{first.create_bucket('things')}/root")
        store.put("x", b"kept")
        assert first.create_bucket("things") == "s3://things"
    with s3_server(tmp_path) as second:
        assert second == first
        assert store.get("x") == b"kept"
    assert list(elsewhere.iterdir()) == []  # its logs, too, lie in its folder
    assert first.secret_key not in repr(first)
    for name in ("server.json", "s3.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_settings_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "server.json").touch()  # as a start left it that was killed
    ports, server = module._settings(tmp_path)
    assert module._settings(tmp_path) == (ports, server)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s3.json", "server.json"]
    for name in ("server.json", "s3.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_server_beside_another_has_its_keys_and_the_ports_it_is_given(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    _, first = module._settings(tmp_path / "a")
    ports, second = module._settings(tmp_path / "b", 20000, first)
    assert sorted(ports.values()) == list(range(20000, 20008))
    assert second.endpoint == "http://127.0.0.1:20000"
    assert (second.access_key, second.secret_key) == (first.access_key, first.secret_key)
    assert module._settings(tmp_path / "b") == (ports, second)


def script(folder: Path, text: str) -> str:
    path = folder / "weed"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_server_that_dies_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_binary", lambda: script(tmp_path, "echo the disk is on fire; exit 3"))
    with pytest.raises(ServiceError) as caught, s3_server(tmp_path / "data"):
        pass
    assert "the disk is on fire" in caught.value.what
    assert "code 3" in caught.value.what


def test_a_server_that_never_answers_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_binary", lambda: script(tmp_path, "trap '' TERM; echo $$; exec sleep 60"))
    with pytest.raises(DeadlineError), s3_server(tmp_path / "data", start_timeout_s=0.3):
        pass
    pid = int((tmp_path / "data" / "weed.log").read_text().split()[0])
    assert not Path(f"/proc/{pid}").exists()


def test_a_missing_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ServiceError) as caught, s3_server(tmp_path):
        pass
    assert caught.value.kind == "missing"

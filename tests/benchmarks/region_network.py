"""Two regions on one machine: Linux network namespaces, and one slow link between them whose bytes the kernel counts.

A region has its loopback and its end of the link, nothing else. Each end sends no faster than the link's rate (HTB),
and counts what it sends by lane: a socket says whose bytes it carries by ``SO_PRIORITY``. All lanes share the rate.
Delay is not made here: many kernels lack netem, so ``region_gateway`` holds bytes back. Needs root, ``ip`` and ``tc``
of iproute2. The namespaces' names carry the process that made them; those of a process that is gone are taken away by
the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "astraflow"
LANES = ("mirror", "pools", "trainer")
"""Whose bytes: the far region's mirror, its pools, and whoever at home asks the far region."""
OTHER = "other"  # what no socket claimed: ARP, handshakes
DEVICE = "wan"
ADDRESSES = {"home": "10.91.0.1", "far": "10.91.0.2"}
_MINORS = {lane: 0x10 + number for number, lane in enumerate((*LANES, OTHER))}
_NAME = re.compile(rf"^{PREFIX}-(\d+)-\d+-\w+$")
_CLASS = re.compile(r"class htb 1:([0-9a-f]+) .*?Sent (\d+) bytes", re.DOTALL)
_SLOTS = 2800  # of eight ports, all below those that systems give away
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Network:
    """Two namespaces by region, and the link's rate."""

    namespaces: dict[str, str]
    rate_mbit: float
    first_ports: dict[str, int]
    """Where a region's server may have its ports: SeaweedFS names sockets in /tmp by them, so regions differ."""

    def inside(self, region: str) -> list[str]:
        """What to put before a command that shall run in the region."""
        return ["ip", "netns", "exec", self.namespaces[region]]

    def sent_bytes(self) -> dict[str, dict[str, int]]:
        """What each region has sent over the link, by lane, with the headers of TCP, IP and Ethernet."""
        return {region: self._sent(name) for region, name in self.namespaces.items()}

    def _sent(self, namespace: str) -> dict[str, int]:
        shown = _run("tc", "-n", namespace, "-s", "class", "show", "dev", DEVICE)
        counts = {int(minor, 16): int(count) for minor, count in _CLASS.findall(shown)}
        return {lane: counts[minor] for lane, minor in _MINORS.items()}


@contextlib.contextmanager
def network(rate_mbit: float) -> Iterator[Network]:
    """Both regions and their link. Raises ``RuntimeError`` with the command that failed; leaves nothing behind.

    Who is in the namespaces when the block ends is the caller's to end before.
    """
    if not rate_mbit > 0:
        raise ValueError(f"the link's rate is {rate_mbit} Mbit/s: give more than 0")  # tc takes others without a word
    sweep()
    number = next(_counter)
    names = {region: f"{PREFIX}-{os.getpid()}-{number}-{region}" for region in ADDRESSES}
    slots = {region: (16 * os.getpid() + 2 * number + at) % _SLOTS for at, region in enumerate(ADDRESSES)}
    made = Network(names, rate_mbit, {region: 10000 + 8 * slot for region, slot in slots.items()})
    with contextlib.ExitStack() as stack:
        for name in made.namespaces.values():
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
        home, far = made.namespaces.values()
        _run("ip", "-n", home, "link", "add", "name", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", far)
        for region, name in made.namespaces.items():
            _run("ip", "-n", name, "addr", "add", f"{ADDRESSES[region]}/30", "dev", DEVICE)
            _limit(name, rate_mbit)
            for device in ("lo", DEVICE):
                _run("ip", "-n", name, "link", "set", device, "up")
        yield made


def _limit(namespace: str, rate_mbit: float) -> None:
    """Send no faster than this, lanes sharing it evenly when it is short."""
    tc = ("tc", "-n", namespace)
    _run(*tc, "qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb", "default", f"{_MINORS[OTHER]:x}")
    most = ("ceil", f"{rate_mbit}mbit", "burst", "128k", "cburst", "128k", "quantum", "60000")
    root = ("parent", "1:", "classid", "1:1", "htb", "rate", f"{rate_mbit}mbit")
    _run(*tc, "class", "add", "dev", DEVICE, *root, *most)
    share = f"{rate_mbit / len(_MINORS)}mbit"
    for minor in _MINORS.values():
        lane = ("parent", "1:1", "classid", f"1:{minor:x}", "htb", "rate", share)
        _run(*tc, "class", "add", "dev", DEVICE, *lane, *most)


def claim(sock: socket.socket, lane: str) -> None:
    """What this socket sends from now on is counted as the lane's."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1 << 16 | _MINORS[lane])


def missing() -> str:
    """Why namespaces cannot be made here; empty if they can."""
    lacking = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacking:
        return f"{' and '.join(lacking)} of iproute2 not installed: apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with network(100):
            return ""
    except RuntimeError as error:
        return str(error)


def sweep() -> None:
    """Take away the namespaces of processes that are gone."""
    for name in namespaces():
        owner = int(_NAME.fullmatch(name)[1])  # type: ignore[index]
        if not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(RuntimeError):  # another sweep was quicker
                _run("ip", "netns", "del", name)


def namespaces() -> Sequence[str]:
    """The names of all that this module has made, here or in another process."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout

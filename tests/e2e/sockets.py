"""Which TCP connections processes hold, from the kernel's own tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil


@dataclass
class SocketWatch:
    """What was ever seen of some processes' sockets. ``named`` gives each process number its name."""

    joined: set[tuple[str, str]] = field(default_factory=set)  # two of the processes that were connected
    peers: dict[str, set[int]] = field(default_factory=dict)  # process -> remote ports
    listens: set[str] = field(default_factory=set)
    looks: int = 0

    def look(self, named: Mapping[int, str]) -> None:
        """Take in what is open now."""
        self.looks += 1
        ends = {}
        for pid, name in named.items():
            for local, remote, is_listening in connections(pid):
                if is_listening:
                    self.listens.add(name)
                elif remote is not None:
                    ends[local, remote] = name
                    self.peers.setdefault(name, set()).add(remote[1])
        for (local, remote), name in ends.items():
            other = ends.get((remote, local))
            if other is not None and other != name:
                self.joined.add((min(name, other), max(name, other)))


def listening_ports(pid: int) -> set[int]:
    """The TCP ports a process listens on."""
    return {local[1] for local, _, is_listening in connections(pid) if is_listening}


def connections(pid: int) -> Iterable[tuple[tuple[str, int], tuple[str, int] | None, bool]]:
    """Local end, remote end and whether it listens, of a process's TCP sockets; none if it has ended."""
    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return []
    return [
        ((_plain(c.laddr[0]), c.laddr[1]), (_plain(c.raddr[0]), c.raddr[1]) if c.raddr else None, c.status == "LISTEN")
        for c in found
    ]


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")

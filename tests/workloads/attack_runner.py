"""Plays attacks and prints the reports as JSON; run by its own process, as root or as an ordinary user.

Needs the standard library alone, so that a user who cannot reach the project's environment can run it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

from astraflow.workloads.sandbox import Call, Interpreter, Limits, Program, Sandbox

LIMITS = Limits(cpu_s=1, wall_s=4, memory_mb=256, output_bytes=1 << 20, file_mb=4)


async def play(order: dict[str, Any]) -> dict[str, Any]:
    """All attacks, each followed by an innocent submission."""
    sandbox = await Sandbox.open([order["kind"]], Interpreter(*order["interpreter"]), at_once=4)
    listener = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0astraflow-test")
    abstract.listen()
    port = str(listener.getsockname()[1])

    async def one(source: str, function: str) -> dict[str, Any]:
        for word, meaning in {**order["words"], "LOCAL_PORT": port}.items():
            source = source.replace(word, meaning)
        case = Call(function) if function else Program()
        [report] = await sandbox.run(source, [case], LIMITS)
        [after] = await sandbox.run("print(input()[::-1])", [Program("olleh")], LIMITS)
        names = ("ended", "stdout", "stderr", "error", "code", "cpu_s", "wall_s")
        return {
            **{name: getattr(report, name) for name in names},
            "value": repr(report.value),
            "after": after.stdout,
        }

    found = await asyncio.gather(*(one(*attack) for attack in order["attacks"].values()))
    listener.close()
    abstract.close()
    return dict(zip(order["attacks"], found, strict=True))


if __name__ == "__main__":
    sys.set_int_max_str_digits(0)
    print(json.dumps(asyncio.run(play(json.load(sys.stdin)))))

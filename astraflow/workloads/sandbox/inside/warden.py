"""The first process in a sandbox: it takes cases from the host, forks a child for each, and says how each one ended.

It holds no expected answer, and believes nothing a child says. It bounds what it keeps of it, kills the child at its
deadline, and waits for the child's process rather than for the end of its output, which a child can hold open or
close as it likes. One child lives at a time; a child cannot make others.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import time
from typing import Any

from . import child, frames, landlock, seccomp

ORDERS_FD, REPORTS_FD = 0, 1
_FRAME = 1 << 26
_CHUNK = 1 << 16
_ERROR_TAIL = 2000
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS}


def main() -> None:
    """Serve one submission until the host closes the pipe."""
    job = frames.receive(ORDERS_FD, _FRAME)
    _lock_in(job)
    gc.freeze()
    frames.send(REPORTS_FD, {"ready": True})
    while True:
        try:
            case = frames.receive(ORDERS_FD, _FRAME)
        except EOFError:
            os._exit(0)
        frames.send(REPORTS_FD, Watch(case, job).until_the_end())


def _lock_in(job: dict[str, Any]) -> None:
    """Become nobody in particular; from here on even this process can do no harm."""
    if job["landlock"]:
        landlock.restrict(job["read"], job["devices"])
    if job["uid"] is not None:
        os.setgroups([])
        os.setresgid(job["uid"], job["uid"], job["uid"])
        os.setresuid(job["uid"], job["uid"], job["uid"])
    os.umask(0o077)
    if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):  # PR_SET_DUMPABLE: no process of the same user looks into this one
        raise OSError("the process could not be closed to others")
    seccomp.die_with_parent()


class Watch:
    """One case in play."""

    def __init__(self, case: dict[str, Any], job: dict[str, Any]) -> None:
        self._limits = job["limits"]
        self._kept: dict[int, bytearray] = {}
        self._err_bytes = 0
        self._may_ask = case["kind"] == "check"
        self._killed = ""
        self._said: dict[str, Any] = {}
        self._begun = time.monotonic()
        self._deadline = self._begun + self._limits["wall_s"]
        ends = [os.pipe() for _ in range(3)]
        reply = os.pipe()
        source = _file(case.pop("stdin", ""))
        self._pid = os.fork()
        if self._pid == 0:
            _become_child(source, [write for _, write in ends], reply[0])
            child.play(case, job)
        os.close(source)
        os.close(reply[0])
        self._reply = reply[1]
        for read, write in ends:
            os.close(write)
            os.set_blocking(read, False)
            self._kept[read] = bytearray()
        self._out, self._err, self._result = (read for read, _ in ends)
        self._process = os.pidfd_open(self._pid)

    def until_the_end(self) -> dict[str, Any]:
        """Follow the child to its end; returns the report."""
        poll = select.poll()
        for fd in (*self._kept, self._process):
            poll.register(fd, select.POLLIN)
        poll.register(ORDERS_FD, 0)  # a hang-up is always told
        ended = False
        while not ended:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._kill("timeout")
                break
            ready = [fd for fd, _ in poll.poll(1000 * left)]
            if ORDERS_FD in ready:  # nobody wants to know any more: end, and the child with this process
                os.kill(self._pid, signal.SIGKILL)
                os._exit(0)
            ended = self._process in ready
            for fd in ready:
                if fd != self._process and not self._take(fd):
                    poll.unregister(fd)
        _, status, usage = os.wait4(self._pid, 0)
        for fd in self._kept:
            while not self._killed and self._take(fd):
                pass
        for fd in (*self._kept, self._process, self._reply):
            os.close(fd)
        return self._report(os.waitstatus_to_exitcode(status), usage)

    def _take(self, fd: int) -> bool:
        """Read what is there; False if there is nothing more for now or ever."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        kept = self._kept[fd]
        kept += data
        if fd == self._err:
            del kept[:-_ERROR_TAIL]
            self._err_bytes += len(data)
        if max(len(kept), self._err_bytes) > self._limits["output_bytes"]:
            self._kill("output")
            return False
        if fd == self._result:
            self._hear(kept)
        return bool(data)

    def _hear(self, kept: bytearray) -> None:
        """Take whole messages from the result pipe; the first that ends the case counts."""
        while len(kept) >= frames.HEAD.size:
            end = frames.HEAD.size + int(frames.HEAD.unpack(kept[: frames.HEAD.size])[0])
            if end > self._limits["output_bytes"]:
                self._kill("output")
                return
            if len(kept) < end:
                return
            body = bytes(kept[frames.HEAD.size : end])
            del kept[:end]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                continue
            if not isinstance(message, dict):
                continue
            if self._may_ask and "ask" in message:
                self._ask_host(message)
            elif not self._said:
                self._said = message

    def _ask_host(self, question: dict[str, Any]) -> None:
        """Hand a question of the tests to the host; the time that its answer takes is not the tests'."""
        begun = time.monotonic()
        frames.send(REPORTS_FD, question)
        reply = frames.receive(ORDERS_FD, _FRAME)
        with contextlib.suppress(BrokenPipeError):  # who asked has ended meanwhile
            frames.send(self._reply, reply)
        self._deadline += time.monotonic() - begun

    def _kill(self, why: str) -> None:
        self._killed = self._killed or why
        os.kill(self._pid, signal.SIGKILL)

    def _report(self, code: int, usage: Any) -> dict[str, Any]:
        cpu_s = usage.ru_utime + usage.ru_stime
        return {
            "ended": self._kind(code, cpu_s),
            "code": code,
            "stdout": self._kept[self._out].decode("utf-8", "surrogateescape"),
            "stderr": self._kept[self._err].decode("utf-8", "backslashreplace"),
            "said": self._said,
            "cpu_s": cpu_s,
            "wall_s": time.monotonic() - self._begun,
            "peak_mb": usage.ru_maxrss / 1024,
        }

    def _kind(self, code: int, cpu_s: float) -> str:
        if self._killed:
            return self._killed
        if code < 0:
            if -code == signal.SIGXCPU or (-code == signal.SIGKILL and cpu_s >= self._limits["cpu_s"]):
                return "timeout"
            return "output" if -code == signal.SIGXFSZ else "crashed" if -code in _CRASHES else "killed"
        if self._said.get("memory"):
            return "memory"
        return "error" if code or "error" in self._said else "ended"


def _file(text: str) -> int:
    """A descriptor that reads ``text``: no pipe that somebody has to keep filled."""
    fd = os.memfd_create("stdin")
    data = memoryview(text.encode("utf-8", "surrogatepass"))
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _become_child(source: int, writes: list[int], reply: int) -> None:
    """Put the descriptors at 0 to 4 and close all others, the host's above all."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 32) for fd in (source, *writes, reply)]  # out of the places' way
    for place, fd in enumerate(high):
        os.dup2(fd, place)
    os.closerange(len(high), 256)

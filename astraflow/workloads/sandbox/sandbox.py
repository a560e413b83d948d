"""The host's side: one fresh sandbox for each submission, a report for each of its cases.

Whatever a submission does ends as a report. What fails here instead (no sandbox, a warden that died or went silent) is
an ``EpisodeError`` of kind ``sandbox``: the episode is dropped, never scored. Where neither kind of sandbox works,
nothing is run at all: ``ConfigError``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Any, Self

from astraflow.workloads.sandbox import launch
from astraflow.workloads.sandbox.inside import frames, values
from astraflow.workloads.sandbox.submission import DEFAULT, Call, Case, Limits, Program, Report
from storage.errors import ConfigError, EpisodeError

KINDS: tuple[launch.Kind, ...] = ("bubblewrap", "landlock")
_START_S = 30.0
_END_S = 5.0
_GRACE_S = 20.0  # beyond a case's own wall time, before the warden counts as lost
_OVERHEAD = 1 << 16  # of a report beyond the two outputs
_STDIN_BYTES = 1 << 25
Answer = Callable[[str, list[Any], dict[str, Any]], Awaitable[Report]]


class Sandbox:
    """Runs submissions, ``at_once`` of them side by side (as many as there are processors, unless told)."""

    def __init__(
        self, kind: launch.Kind, interpreter: launch.Interpreter | None = None, *, at_once: int | None = None
    ) -> None:
        self.kind = kind
        self._interpreter = interpreter or launch.Interpreter.current()
        self._room = asyncio.Semaphore(at_once or len(os.sched_getaffinity(0)))

    @classmethod
    async def open(
        cls,
        kinds: Iterable[launch.Kind] = KINDS,
        interpreter: launch.Interpreter | None = None,
        *,
        at_once: int | None = None,
    ) -> Self:
        """The first kind that works on this machine, tried out. Raises ``ConfigError`` if none does."""
        why = []
        for kind in kinds:
            sandbox = cls(kind, interpreter, at_once=at_once)
            try:
                [report] = await sandbox.run("print(6 * 7)", [Program()])
            except EpisodeError as error:
                why.append(f"{kind}: {error.what}")
                continue
            if report.stdout == "42\n":
                return sandbox
            why.append(f"{kind}: a trial ended as {report.ended}: {report.stderr or report.message}")
        raise ConfigError(
            f"no sandbox works on this machine, so no submission is run ({'; '.join(why)})",
            where="code sandbox",
            remedy="Install bubblewrap (apt-get install bubblewrap), or run on Linux 6.2 or newer with Landlock",
            kind="no_sandbox",
        )

    async def run(self, source: str, cases: Iterable[Case], limits: Limits = DEFAULT) -> list[Report]:
        """Run all cases of one submission in one sandbox, each in a process of its own."""
        async with self.session(source, limits) as session:
            return [await session.play(case) for case in cases]

    @contextlib.asynccontextmanager
    async def session(self, source: str, limits: Limits = DEFAULT, *, waits: bool = True) -> AsyncIterator[Session]:
        """A sandbox for one submission, gone at the end with all that is in it.

        ``waits`` is false for a second sandbox beside one that its holder already has: waiting for room while
        holding room could go on for ever.
        """
        async with self._room if waits else contextlib.nullcontext():
            session = Session(self._launch(limits), source, limits)
            try:
                await session.start()
                yield session
            finally:
                await session.end()

    def _launch(self, limits: Limits) -> launch.Launch:
        try:
            if self.kind == "bubblewrap":
                return launch.bubblewrap(self._interpreter, limits.file_mb)
            return launch.landlock(self._interpreter)
        except OSError as error:
            raise _broken(f"{self.kind} cannot be started: {error}") from error


class Session:
    """One sandbox with one submission in it."""

    def __init__(self, start: launch.Launch, source: str, limits: Limits) -> None:
        self._start = start
        self._source = source
        self._limits = limits
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the sandbox and wait until its warden is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *self._start.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=launch.scrubbed(),
            cwd="/",
            start_new_session=True,
        )
        job = {**self._start.job, "source": self._source, "limits": asdict(self._limits)}
        if not (await self._exchange(job, _START_S)).get("ready"):
            raise _broken("the sandbox began with something else than being ready")

    async def play(self, case: Case) -> Report:
        """Play one case."""
        if isinstance(case, Program):
            return _report(await self._ask({"kind": "program", "stdin": case.stdin}), case)
        order = {
            "kind": "call",
            "function": case.function,
            "args": [values.encode(item) for item in case.args],
            "kwargs": {name: values.encode(item) for name, item in case.kwargs.items()},
        }
        return _report(await self._ask(order), case)

    async def check(self, checks: list[str], given: list[str], answer: Answer) -> Report:
        """Run the source as the tests of a problem, its functions ``checks`` called with the names ``given``.

        What the tests call and do not define is asked of ``answer``, which plays it elsewhere.
        """
        message = await self._ask({"kind": "check", "checks": checks, "given": given})
        while "ask" in message:
            args = [values.decode(item) for item in message["args"]]
            kwargs = {name: values.decode(item) for name, item in message["kwargs"].items()}
            report = await answer(message["ask"], args, kwargs)
            if report.ended == "ended":
                reply: dict[str, Any] = {"value": values.encode(report.value)}
            else:
                reply = {"error": f"{report.ended}: {report.error}"}
            message = await self._ask(reply)
        return _report(message, Call(""))

    async def end(self) -> None:
        """End the sandbox: its warden goes as soon as the pipe closes, in play or not, as it does if this process dies.

        Killing comes second: bubblewrap's own process may be killed before what it starts knows to die with it.
        """
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.transport.abort()
        try:
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        finally:
            process._transport.close()  # type: ignore[attr-defined]  # what was not read holds the pipes open

    async def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        return await self._exchange(order, self._limits.wall_s + _GRACE_S)

    async def _exchange(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send an order and take the warden's message. Raises ``EpisodeError`` if there is none in time."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise _broken("the sandbox was not started")
        try:
            async with asyncio.timeout(timeout_s):
                process.stdin.write(frames.pack(order))
                await process.stdin.drain()
                head = await process.stdout.readexactly(frames.HEAD.size)
                limit = 12 * self._limits.output_bytes + _OVERHEAD  # an escaped byte takes up to six
                body = await process.stdout.readexactly(frames.body_size(head, limit))
            message = json.loads(body)
        except TimeoutError as error:
            raise _broken(f"the sandbox was silent for {timeout_s:g} s") from error
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise _broken(f"the sandbox ended: {error or type(error).__name__}. {await self._last_words()}") from error
        if not isinstance(message, dict):
            raise _broken("the sandbox said something without meaning")
        return message

    async def _last_words(self) -> str:
        process = self._process
        if process is None or process.stderr is None:
            return ""
        try:
            async with asyncio.timeout(2.0):
                return (await process.stderr.read(2000)).decode("utf-8", "replace").strip()
        except TimeoutError:
            return ""


def _report(message: dict[str, Any], case: Case) -> Report:
    """A warden's message as a report; what the submission said in it may be anything."""
    said = message["said"] if isinstance(message["said"], dict) else {}
    ended = message["ended"]
    value = None
    error, text = str(said.get("error", ""))[:200], str(said.get("message", ""))[:1000]
    if ended == "ended" and isinstance(case, Call):
        if "value" not in said:
            ended = "no_result"
        else:
            try:
                value = values.decode(said["value"])
            except (values.NotPlainError, RecursionError, TypeError) as problem:
                ended, error, text = "no_result", type(problem).__name__, str(problem)
    return Report(
        ended=ended,
        stdout=message["stdout"],
        stderr=message["stderr"],
        value=value,
        error=error,
        message=text,
        code=message["code"],
        cpu_s=message["cpu_s"],
        wall_s=message["wall_s"],
        peak_mb=message["peak_mb"],
    )


def _broken(what: str) -> EpisodeError:
    return EpisodeError(what, where="code sandbox", remedy="", kind="sandbox")

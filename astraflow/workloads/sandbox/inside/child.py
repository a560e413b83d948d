"""The process that plays one case: it sets its limits, goes behind the filter, runs the submission, and ends.

It is forked for one case and never returns. Everything after ``wall_in`` shares its process with the submission,
so nothing it says is believed: what leaves it is data (standard output, one value), and whether that data is right is
decided elsewhere. What the submission shadows (``print``, ``json``, a method of ``str``) changes its own answer only.
"""

from __future__ import annotations

import atexit
import builtins
import os
import resource
import sys
import threading
from typing import Any, NoReturn

from . import frames, seccomp, values

RESULT_FD, REPLY_FD = 3, 4
_MESSAGE = 500  # characters of an error's text
_exit = os._exit


def play(case: dict[str, Any], job: dict[str, Any]) -> NoReturn:
    """Play ``case`` of ``job``; descriptors 0 to 4 are in place. Never returns."""
    code = 1
    try:
        wall_in(job)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - the process's own
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        code = {"program": _program, "call": _call, "check": _check}[case["kind"]](case, job)
    except BaseException as error:  # noqa: BLE001 - whatever a submission raises ends here
        code = _ended_by(error)
    finally:
        _exit(code)


def wall_in(job: dict[str, Any]) -> None:
    """Limits first, since the filter no longer lets them be raised; then the filter."""
    limits = job["limits"]
    size = limits["memory_mb"] << 20
    for what, most in (
        (resource.RLIMIT_AS, size),
        (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, job["processes"]),
        (resource.RLIMIT_STACK, 64 << 20),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # SIGXCPU says why; who ignores it is killed a second later, well past the limit however the kernel samples time.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))
    seccomp.die_with_parent()
    seccomp.install(seccomp.program(os.getpid()))


def _program(case: dict[str, Any], job: dict[str, Any]) -> int:
    """Run the source as a program, with what a program has at its end: threads joined, exit functions, a flush."""
    try:
        _run(job["source"], "__main__")
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code


def _call(case: dict[str, Any], job: dict[str, Any]) -> int:
    """Call one function of the source, and say what it returned."""
    namespace = _run(job["source"], "submission")
    function = _find(namespace, case["function"])
    arguments = [values.decode(item) for item in case["args"]]
    named = {key: values.decode(item) for key, item in case.get("kwargs", {}).items()}
    frames.send(RESULT_FD, {"value": values.encode(function(*arguments, **named))})
    return 0


def _find(namespace: dict[str, Any], name: str) -> Any:
    """The function; as a method of ``Solution`` too, which is how some problems want it."""
    if name in namespace:
        return namespace[name]
    if "Solution" in namespace:
        return getattr(namespace["Solution"](), name)
    raise NameError(f"there is no function {name!r} in the submission")


def _check(case: dict[str, Any], job: dict[str, Any]) -> int:
    """Run the tests of a problem; the functions they ask for live in another sandbox, reached through the host."""
    namespace = _Asking(__name__="check")
    exec(compile(job["source"], "tests", "exec"), namespace)
    for name in case["checks"]:
        namespace[name](*[namespace[given] for given in case.get("given", [])])
    frames.send(RESULT_FD, {"value": True})
    return 0


class _Asking(dict[str, Any]):
    """Globals of tests: a name that they do not define is a function of the submission."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name.startswith("__"):
            raise KeyError(name)
        return lambda *args, **kwargs: _ask(name, args, kwargs)


def _ask(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    question = {
        "ask": name,
        "args": [values.encode(item) for item in args],
        "kwargs": {key: values.encode(item) for key, item in kwargs.items()},
    }
    frames.send(RESULT_FD, question)
    reply = frames.receive(REPLY_FD, 1 << 24)
    if "value" in reply:
        return values.decode(reply["value"])
    raise RuntimeError(reply["error"])  # a test that expects an error sees one


def _run(source: str, name: str) -> dict[str, Any]:
    module = type(sys)(name)
    sys.modules[name] = module  # dataclasses and typing look their module up
    namespace = module.__dict__
    exec(compile(source, "submission.py", "exec"), namespace)
    return namespace


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _ended_by(error: BaseException) -> int:
    """Say which error ended the case; the text is the submission's own and may itself be broken."""
    try:
        text = str(error)[:_MESSAGE]
    except BaseException:  # noqa: BLE001
        text = ""
    frames.send(RESULT_FD, {"error": type(error).__name__, "message": text, "memory": isinstance(error, MemoryError)})
    return 1

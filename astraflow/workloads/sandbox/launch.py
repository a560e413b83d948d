"""How a sandbox is started: by bubblewrap, or with Landlock where bubblewrap cannot run.

Both begin with an empty environment and only standard input and output. Under bubblewrap the submission sees the
interpreter's files, the system's libraries, an empty ``/tmp`` of bounded size and no ``/proc``, in namespaces of its
own; under Landlock it may read the same files and write none. A sandbox started by root becomes a user that nothing
else runs as, since root's limit on processes is not enforced.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from astraflow.workloads.sandbox.inside import warden  # noqa: F401 - leaves its bytecode for the sandboxes

Kind = Literal["bubblewrap", "landlock"]
_INSIDE = Path(__file__).parent / "inside"
_MOUNTED = "/warden"
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/lib32")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_THREADS = 64
_MIB = 1 << 20
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "2",  # else each thread's arena takes 64 MB of address space
}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs submissions: its executable, and the folder that holds its standard library."""

    executable: str
    prefix: str

    @classmethod
    def current(cls) -> Self:
        """The one that this process runs on, without its virtual environment."""
        base = getattr(sys, "_base_executable", None) or sys.executable
        return cls(str(Path(base).resolve()), str(Path(sys.base_prefix).resolve()))

    @classmethod
    def system(cls) -> Self | None:
        """The operating system's, if there is one."""
        path = Path("/usr/bin/python3")
        return cls(str(path.resolve()), "/usr") if path.exists() else None

    @property
    def open_to_all(self) -> bool:
        """Whether any user can read it: the home of root cannot be entered."""
        path = Path(self.executable)
        return all(folder.stat().st_mode & 0o1 for folder in path.parents) and bool(path.stat().st_mode & 0o1)

    @property
    def folders(self) -> list[str]:
        """What must be readable for it to run."""
        own = [self.executable] if self.prefix == "/usr" else [self.prefix]
        return [*own, *(path for path in _LIBRARIES if Path(path).exists()), "/etc/ld.so.cache"]


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and the job that its warden is told first (without source and limits)."""

    argv: list[str]
    job: dict[str, Any]


def bubblewrap(interpreter: Interpreter, file_mb: int) -> Launch:
    """Start by bubblewrap. Raises ``OSError`` if it is not installed."""
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bwrap is not installed")
    root = os.geteuid() == 0
    size = str(file_mb * _MIB)
    argv = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    if root:
        argv += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    for parent in reversed(Path(interpreter.prefix).parents[:-1]):
        argv += ["--perms", "0711", "--dir", str(parent)]  # else closed to all but root, as its home is
    for path in interpreter.folders:
        if path in _LIBRARIES and Path(path).is_symlink():
            argv += ["--symlink", str(Path(path).readlink()), path]
        else:
            argv += ["--ro-bind-try", path, path]
    argv += ["--ro-bind", str(_INSIDE), f"{_MOUNTED}/inside", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm"]
    argv += ["--remount-ro", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp"]
    argv += ["--remount-ro", "/"]
    for name, value in _ENVIRONMENT.items():
        argv += ["--setenv", name, value]
    uid = _nobodys_uid() if root else None
    job = {"landlock": False, "uid": uid, "processes": _THREADS}
    return Launch([*argv, "--", *_warden(interpreter, _MOUNTED)], job)


def landlock(interpreter: Interpreter) -> Launch:
    """Start with Landlock alone. Raises ``OSError`` if the interpreter could not be read after root was dropped."""
    root = os.geteuid() == 0
    if root and not interpreter.open_to_all:
        other = Interpreter.system()
        if other is None or not other.open_to_all:
            raise PermissionError(f"ordinary users cannot read the interpreter {interpreter.executable}")
        interpreter = other
    uid = _nobodys_uid() if root else None
    threads = _THREADS + (0 if root else _threads_of(os.geteuid()))
    job = {"landlock": True, "uid": uid, "processes": threads, "read": interpreter.folders, "devices": _DEVICES}
    return Launch(_warden(interpreter, str(_INSIDE.parent)), job)


def scrubbed() -> dict[str, str]:
    """The environment that a sandbox is started with: bubblewrap's own would be readable from inside."""
    return dict(_ENVIRONMENT)


def _warden(interpreter: Interpreter, folder: str) -> list[str]:
    start = f"import sys; sys.path.insert(0, {folder!r}); from inside.warden import main; main()"
    return [interpreter.executable, "-S", "-s", "-P", "-B", "-c", start]


def _nobodys_uid() -> int:
    """A user id of its own for each sandbox: limits on processes count by user, and users cannot touch each other."""
    return random.SystemRandom().randrange(1 << 30, 1 << 31)


def _threads_of(uid: int) -> int:
    """How many threads a user runs now; without a namespace the limit counts those too."""
    count = 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.stat().st_uid == uid:
                count += (folder / "task").stat().st_nlink - 2
        except OSError:  # it ended meanwhile
            continue
    return count

"""Landlock: this process may read the interpreter's files and nothing else, and write nowhere.

It needs no namespace and no privilege, so it is what is left where bubblewrap cannot run. Ancient versions do
not know of truncation, which would let a submission empty its user's files: they count as absent.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every machine
_VERSION = 1
_OLDEST = 3  # Linux 6.2
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_ALL_OF_ABI = {3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # truncate; then nets; then ioctl_dev
_NETS = 3  # bind and connect over TCP
_SCOPES = 3  # abstract sockets and signals


def version() -> int:
    """The kernel's version of Landlock; 0 if there is none, or none that will do."""
    try:
        found = int(_libc().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION))
    except AttributeError:
        return 0
    return found if found >= _OLDEST else 0


def restrict(read: Iterable[str], devices: Iterable[str]) -> None:
    """Allow reading below ``read``, and reading and writing ``devices``; all else is over. Raises ``OSError``."""
    abi = version()
    if not abi:
        raise OSError("this kernel has no Landlock that will do (Linux 6.2 or newer has)")
    libc = _libc()
    handled = _ALL_OF_ABI[min(abi, 5)]
    attribute = struct.pack("QQQ", handled, _NETS if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = _checked(libc.syscall(_CREATE, attribute, ctypes.c_size_t(size), 0))
    try:
        for path in read:
            _allow(libc, rules, path, _READ | _LIST | _EXECUTE)
        for path in devices:
            _allow(libc, rules, path, _READ | _WRITE)
        _checked(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
        _checked(libc.syscall(_RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib costs the sandbox 10 ms to import
            access &= ~_LIST
        _checked(libc.syscall(_ADD, rules, 1, struct.pack("=Qi", access, fd), 0))
    finally:
        os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

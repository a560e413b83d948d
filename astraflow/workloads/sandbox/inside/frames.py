"""Messages over a pipe: a length of four bytes, then JSON. Both sides bound what they take in.

The host reads what a sandbox says, and a sandbox may be taken over: a frame above ``limit`` bytes is a ``ValueError``
before anything of it is read.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

HEAD = struct.Struct(">I")
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def pack(message: Any) -> bytes:
    """The bytes of a message; whatever text it holds, they are ASCII."""
    body = _encode(message).encode()
    return HEAD.pack(len(body)) + body


def send(fd: int, message: Any) -> None:
    """Write a message to a blocking descriptor."""
    left = memoryview(pack(message))
    while left:
        left = left[os.write(fd, left) :]


def receive(fd: int, limit: int) -> Any:
    """Read a message from a blocking descriptor. Raises ``EOFError`` at the end, ``ValueError`` if it is too long."""
    return json.loads(_exactly(fd, body_size(_exactly(fd, HEAD.size), limit)))


def body_size(head: bytes, limit: int) -> int:
    """The length that a head announces."""
    size = int(HEAD.unpack(head)[0])
    if size > limit:
        raise ValueError(f"a message of {size} bytes, at most {limit} are taken")
    return size


def _exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        read = os.read(fd, size - len(data))
        if not read:
            raise EOFError("the other side is gone")
        data += read
    return bytes(data)

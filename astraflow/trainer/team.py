"""The ranks of one trainer: who I am among them, and the few ways in which they talk.

Rank 0 leads: it alone speaks to logs and status, and tells the others what to do in bytes of ours (JSON, msgpack), so
that nothing is pickled between ranks. ``ALONE`` is a team of one, for which every exchange is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(days=30)
"""Ranks wait for rank 0, which may wait for a batch; one that dies closes its connections and is noticed at once."""


class Team(Protocol):
    """The ranks of a trainer, seen from one of them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def share(self, data: bytes = b"") -> bytes:
        """Rank 0's ``data`` on every rank."""
        ...

    def collect(self, data: bytes) -> list[bytes]:
        """The ``data`` of every rank, in order, on every rank."""
        ...

    def everyone(self, values: Tensor) -> Sequence[Tensor]:
        """The values [n] of every rank, in order, on every rank; n may differ."""
        ...


class Alone:
    """A trainer of one process."""

    rank = 0
    size = 1

    def share(self, data: bytes = b"") -> bytes:
        return data

    def collect(self, data: bytes) -> list[bytes]:
        return [data]

    def everyone(self, values: Tensor) -> Sequence[Tensor]:
        return [values]


ALONE: Team = Alone()


class Ranks:
    """A team over torch.distributed. ``words`` is the group that carries our bytes, on the CPU."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.words = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.files = dist.new_group(backend="gloo", timeout=PATIENCE)  # for checkpoints, which a thread writes

    def share(self, data: bytes = b"") -> bytes:
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0, group=self.words)
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0 and data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, 0, group=self.words)
        return buffer.numpy().tobytes()

    def collect(self, data: bytes) -> list[bytes]:
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return [found.numpy().tobytes() for found in self.everyone(own)]

    def everyone(self, values: Tensor) -> Sequence[Tensor]:
        own = values.detach().cpu()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([own.numel()]), group=self.words)
        longest = max(int(length) for length in lengths)
        if longest == 0:
            return [own] * self.size
        padded = own.new_zeros(longest)
        padded[: own.numel()] = own
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded, group=self.words)
        return [each[: int(length)].to(values.device) for each, length in zip(found, lengths, strict=True)]


def join_team() -> Team:
    """The team that torchrun's environment names. Gloo on CPUs; with GPUs, NCCL for the tensors that are there."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    return Ranks()

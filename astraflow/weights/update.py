"""What an engine is given when weights change: the new tensors, and which of them are new."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A version ready to be loaded.

    ``tensors`` holds every tensor of the policy (tied names share one tensor). They are the subscriber's own
    buffers: read them, never write, and only until its next ``fetch``. ``changed`` names the tensors that
    may differ from the update that ``fetch`` returned before (all of them at first): an engine that loaded
    that one may copy only these. ``payload_bytes`` were downloaded for it.
    """

    policy: str
    version: int
    step: int
    digest: str  # the manifest's: equal weights have equal digests
    tensors: dict[str, torch.Tensor]
    changed: frozenset[str]
    payload_bytes: int

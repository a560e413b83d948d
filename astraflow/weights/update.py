"""What an engine is given when weights change: the new tensors, and which of them are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A version ready to be loaded.

    ``tensors`` holds every tensor of the policy (tied names share one tensor). They are the subscriber's own
    buffers: read them, never write, and only until its next ``fetch``. ``changed`` names the tensors that
    may differ from the update that ``fetch`` returned before (all of them at first): an engine that loaded
    that one may copy only these; and of a tensor in ``places`` only those elements [C] of its flat form, the others
    are the same. ``payload_bytes`` were downloaded for it.
    """

    policy: str
    version: int
    step: int
    digest: str  # the manifest's: equal weights have equal digests
    tensors: dict[str, torch.Tensor]
    changed: frozenset[str]
    payload_bytes: int
    places: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @torch.inference_mode()
    def write_into(self, targets: Mapping[str, torch.Tensor], *, everything: bool) -> None:
        """Copy the weights into ``targets`` of the same names and shapes, cast to their dtype, on their device.

        Only what changed, unless ``everything``: the targets must then hold the update that came before.
        """
        for name in self.tensors if everything else self.changed:
            target, new = targets[name], self.tensors[name]
            at = None if everything else self.places.get(name)
            if at is None or not target.is_contiguous():
                target.copy_(new)
            else:
                chosen = new.reshape(-1)[at].to(target.device, target.dtype)
                target.view(-1)[at.to(target.device)] = chosen

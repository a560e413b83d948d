"""``sft``: imitate. Every trained token of a batch's sequences is to become likelier.

The sequences are trajectories like any other: a workflow that demonstrates (``demonstrate``) makes them out of a data
set of prompts with completions, or of conversations, so that everything else of a run is as ever.
"""

from __future__ import annotations

from torch import Tensor

from astraflow.config import Trainer
from astraflow.trainer.batch import MicroBatch
from astraflow.trainer.objective import Examples, Setting
from astraflow.trainer.reader import LoadedBatch
from astraflow.trainer.surrogate import TokenLoss


class Sft:
    """Cross-entropy: ``-log π(token)``, rewards and the log-probs of sampling do not matter."""

    def __init__(self, settings: Trainer) -> None:
        self._settings = settings

    def start(self, setting: Setting) -> None:
        """Nothing is needed."""

    def examples(self, batch: LoadedBatch) -> Examples:
        sequences = [sequence for part in batch.parts for sequence in part.sequences]
        return Examples(sequences, [1.0] * len(sequences))

    def loss(self, logprobs: Tensor, micro: MicroBatch, proximal: Tensor) -> TokenLoss:
        return TokenLoss(-logprobs, micro.mask & False)

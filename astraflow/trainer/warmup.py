"""Supervised warm-up: teach an untrained model the form of an answer, until RL has something to reward.

Demonstrations come from the workflow, so they look exactly like what the policy will be asked. It stops when the
expected sampled accuracy is reached: the mean probability, at temperature 1, that sampling gives the
demonstrated answer. That needs one forward pass and no sampling, so it has no noise.

Everything is drawn from the run's seed: a warm-up that is broken off and started again gives the same weights.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from astraflow.config import Warmup
from astraflow.problems import Problem, problems_from_table
from astraflow.trainer.batch import micro_batches
from astraflow.trainer.life import Life
from astraflow.trainer.logprobs import token_logprobs
from astraflow.trainer.losses import row_weights, weighted_sum
from astraflow.trainer.reader import Sequence
from astraflow.workflows import load_workflow
from astraflow.workflows.render import Renderer
from storage.errors import ConfigError, DataError
from storage.tables import read_table

CHECK_EVERY = 20
CHECK_PROBLEMS = 256
BETAS = (0.9, 0.95)
GRAD_CLIP = 1.0


@dataclass(slots=True)
class Demonstrations:
    """Token sequences of demonstrated answers for one policy, drawn from a workflow and problems."""

    life: Life
    renderer: Renderer
    workflow: Any
    problems: list[Problem]
    _known: dict[tuple[str, ...], Sequence] = field(default_factory=dict)

    @classmethod
    def of(cls, life: Life, tokenizer: Any) -> Demonstrations:
        """Raises ``ConfigError`` if the workflow demonstrates nothing."""
        workflow = load_workflow(life.config)
        if getattr(workflow, "demonstrate", None) is None:
            raise ConfigError(
                f"the workflow {life.config.workflow.name!r} has no demonstrate()",
                where=f"policies.{life.policy}.warmup",
                remedy="Remove the warmup, or give the workflow a demonstrate(problem, rng)",
                kind="warmup",
            )
        key = life.keys.problems(life.config.data_hash)
        table = life.persist(lambda: read_table(life.store, key), "reading the problems")
        return cls(life, Renderer(tokenizer), workflow, problems_from_table(table))

    def draw(self, count: int, rng: random.Random) -> dict[str, list[Sequence]]:
        """At least ``count`` sequences by role, of problems drawn by ``rng``."""
        drawn: dict[str, list[Sequence]] = defaultdict(list)
        total, fruitless = 0, 0
        while total < count:
            before = total
            for shown in self.workflow.demonstrate(rng.choice(self.problems), rng):
                if self.life.config.policy_of(shown.role) == self.life.policy:
                    drawn[shown.role].append(self._sequence(shown.messages, shown.completion))
                    total += 1
            fruitless = fruitless + 1 if total == before else 0
            if fruitless > 1000:
                raise ConfigError(
                    f"the workflow {self.life.config.workflow.name!r} demonstrates no role of this policy",
                    where=f"policies.{self.life.policy}.warmup",
                    remedy="Remove the warmup, or map a role that is demonstrated to the policy",
                    kind="warmup",
                )
        return drawn

    def _sequence(self, messages: Rows[Any], completion: str) -> Sequence:
        key = (completion, *(str(message) for message in messages))
        if key not in self._known:
            prompt = self.renderer.prompt(self.renderer.text(messages))
            eos = int(self.renderer.tokenizer.eos_token_id)
            response = np.array([*self.renderer.encode(completion), eos], dtype=np.int32)
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[key] = Sequence(
                pool="",
                prompt_ids=np.array(prompt, dtype=np.int32),
                response_ids=response,
                logprobs=np.zeros(len(response), dtype=np.float32),
                loss_mask=np.ones(len(response), dtype=np.bool_),
                lags=np.zeros(len(response), dtype=np.int64),
                reward=0.0,
                temperature=1.0,
            )
        return self._known[key]


def warm_up(life: Life, model: Any, tokenizer: Any, warmup: Warmup) -> float:
    """Train ``model`` in place on demonstrations; returns the expected sampled accuracy it reached."""
    demonstrations = Demonstrations.of(life, tokenizer)
    rng = random.Random(f"{life.config.seed}/{life.policy}/warm-up")
    held = demonstrations.draw(CHECK_PROBLEMS, random.Random(f"{life.config.seed}/{life.policy}/warm-up check"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=warmup.lr, betas=BETAS, fused=True)
    accuracy = 0.0
    for step in range(warmup.max_steps):
        if step % CHECK_EVERY == 0:
            accuracy = expected_accuracy(life, model, held)
            life.say("warming up", warmup_step=float(step), warmup_accuracy=accuracy)
            if accuracy >= warmup.until_accuracy:
                return accuracy
        drawn = demonstrations.draw(warmup.batch_size, rng)
        _supervised_step(life, model, optimizer, [sequence for rows in drawn.values() for sequence in rows])
    return expected_accuracy(life, model, held)


def _supervised_step(life: Life, model: Any, optimizer: torch.optim.Optimizer, sequences: list[Sequence]) -> None:
    """Cross-entropy of the answers' tokens, mean over the batch's tokens."""
    optimizer.zero_grad(set_to_none=True)
    tokens = torch.tensor([len(sequence.response_ids) for sequence in sequences])
    weights = row_weights(tokens, "token", 1)
    for micro in _micros(life, sequences, weights):
        logprobs = token_logprobs(model, micro.input_ids, micro.keep, micro.temperatures)
        torch.autograd.backward(weighted_sum(-logprobs, micro.mask, micro.weights))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP, foreach=True)
    if not torch.isfinite(norm):
        raise DataError(
            "the warm-up's gradient is not finite",
            where=f"policies.{life.policy}.warmup",
            remedy="Lower its lr",
            kind="non_finite",
        )
    optimizer.step()


@torch.no_grad()
def expected_accuracy(life: Life, model: Any, demonstrations: dict[str, list[Sequence]]) -> float:
    """The mean probability of sampling a demonstrated answer, of the role that is worst at it.

    The end token counts only where sampling has room for it (``sampling.max_tokens``).
    """
    limit = life.config.policies[life.policy].sampling.max_tokens
    accuracies = []
    for sequences in demonstrations.values():
        chances = 0.0
        for micro in _micros(life, sequences, torch.zeros(len(sequences))):
            logprobs = token_logprobs(model, micro.input_ids, micro.keep, micro.temperatures)
            counted = micro.mask & (micro.mask.cumsum(-1) <= limit)
            chances += float(torch.where(counted, logprobs, torch.zeros_like(logprobs)).sum(-1).exp().sum())
        accuracies.append(chances / len(sequences))
    return min(accuracies)


def _micros(life: Life, sequences: list[Sequence], weights: torch.Tensor) -> list[Any]:
    budget = life.settings.micro_batch_tokens
    return micro_batches(sequences, [0.0] * len(sequences), weights, pad_id=0, budget_tokens=budget)

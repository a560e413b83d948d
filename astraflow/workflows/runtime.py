"""What a workflow plays with: ``roles.NAME.chat(messages)`` gives an ``Answer``, whose ``reward`` it sets.

Each role keeps its sequences. Messages that extend one of them (its messages, its answer, and more) continue its
token ids; any other conversation begins a new sequence with the next slot. So a trajectory is exactly what the model
saw and sampled, and an episode has as many of them as it had separate conversations.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from astraflow.raas.engine import Engine, Generation, GenerationRequest
from astraflow.trajectory import Trajectory
from astraflow.workflows.render import Message, Renderer
from astraflow.workflows.sequence import Answer
from astraflow.workflows.sequence import Sequence as TokenSequence
from storage.errors import EpisodeError

if TYPE_CHECKING:
    from astraflow.config import Sampling


@dataclass(frozen=True, slots=True)
class Voice:
    """How a policy is asked: its engine, tokenizer and sampling. A ``frozen`` one needs no reward."""

    policy: str
    engine: Engine
    renderer: Renderer
    sampling: Sampling
    stop_ids: frozenset[int]
    frozen: bool = False


class RoleHandle:
    """One role of one episode."""

    def __init__(self, name: str, voice: Voice, seed: str) -> None:
        self.name = name
        self.sequences: list[TokenSequence] = []
        self._voice = voice
        self._seed = seed

    async def chat(
        self, messages: Sequence[Message], *, temperature: float | None = None, max_tokens: int | None = None
    ) -> Answer:
        """Let the role answer a conversation, with the policy's sampling unless told otherwise."""
        renderer = self._voice.renderer
        text = renderer.text(messages)
        warmth = self._voice.sampling.temperature if temperature is None else temperature
        known = self._known(messages, warmth)
        injected = None if known is None else renderer.continuation(known.text, messages, known.stop_id)
        if known is None or injected is None:
            known = self._begin(renderer.prompt(text), warmth)
        else:
            known.inject(injected, messages[len(known.messages)]["role"])
        return await self._answer(known, messages, text, max_tokens)

    async def complete(self, prompt: str, *, temperature: float | None = None, max_tokens: int | None = None) -> Answer:
        """Let the role continue a raw text, without a chat template, in a sequence of its own."""
        warmth = self._voice.sampling.temperature if temperature is None else temperature
        return await self._answer(self._begin(self._voice.renderer.prompt(prompt), warmth), [], prompt, max_tokens)

    def trajectories(self) -> list[Trajectory]:
        """The finished trajectories. Raises ``EpisodeError`` if one has no finite reward: none is ever taken as 0."""
        for sequence in self.sequences:
            reward = 0.0 if sequence.reward is None and self._voice.frozen else sequence.reward
            if reward is None or not math.isfinite(reward):
                raise EpisodeError(
                    f"role {self.name!r} slot {sequence.trajectory.slot} has the reward {reward}",
                    where="workflow",
                    remedy="The workflow must set a finite answer.reward for every conversation",
                    kind="reward",
                )
            sequence.trajectory.reward = reward
        return [sequence.trajectory for sequence in self.sequences]

    def _known(self, messages: Sequence[Message], temperature: float) -> TokenSequence | None:
        """The longest sequence that ``messages`` extend and that was sampled at this temperature."""
        found = [s for s in self.sequences if s.temperature == temperature and s.extends(messages)]
        return max(found, key=lambda s: len(s.messages), default=None)

    def _begin(self, prompt: list[int], temperature: float) -> TokenSequence:
        row = Trajectory(self._voice.policy, self.name, len(self.sequences), prompt, [], [], [], [])
        row.temperature = temperature or 1.0  # greedy log-probs are those at 1
        sequence = TokenSequence(row, temperature)
        self.sequences.append(sequence)
        return sequence

    async def _answer(
        self, sequence: TokenSequence, messages: Sequence[Message], text: str, max_tokens: int | None
    ) -> Answer:
        voice, row = self._voice, sequence.trajectory
        request = GenerationRequest(
            policy=voice.policy,
            prompt_ids=tuple(sequence.ids),
            max_tokens=voice.sampling.max_tokens if max_tokens is None else max_tokens,
            stop_token_ids=voice.stop_ids,
            temperature=sequence.temperature,
            seed=_seed(f"{self._seed}/{self.name}/{row.slot}/{len(row.response_ids)}"),
        )
        sequence.open = True
        generation: Generation = await voice.engine.generate(request)
        sequence.open = False
        said = sequence.answer(generation, messages, text, voice.renderer)
        return Answer(said, generation.token_ids, generation.finish_reason, sequence)


class Roles:
    """The roles of one episode, by attribute: ``roles.solver``."""

    def __init__(self, handles: Mapping[str, RoleHandle]) -> None:
        self._handles = dict(handles)

    @classmethod
    def of(cls, voices: Mapping[str, Voice], seed: str) -> Roles:
        """Roles that play with ``voices``; ``seed`` is the episode's and makes all its draws."""
        return cls({name: RoleHandle(name, voice, seed) for name, voice in voices.items()})

    def __getattr__(self, name: str) -> RoleHandle:
        handles: dict[str, RoleHandle] = self.__dict__.get("_handles", {})
        if name not in handles:
            raise AttributeError(
                f"there is no role {name!r} here, only {sorted(handles)}: declare it in @workflow(roles=…)"
            )
        return handles[name]

    def trajectories(self) -> list[Trajectory]:
        """All trajectories of the episode. Raises ``EpisodeError`` if there is none or one lacks a reward."""
        rows = [row for handle in self._handles.values() for row in handle.trajectories()]
        if not rows:
            raise EpisodeError(
                "the episode has no trajectory",
                where="workflow",
                remedy="The workflow must await a role's chat or complete",
                kind="empty",
            )
        return rows


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

"""One role of one episode: what it is asked becomes sequences of token ids.

Each role keeps its sequences. Messages that extend one of them (its messages, its answer, and more) continue its
token ids; messages that go on from an earlier answer fork it there; any other conversation begins a new sequence with
the next slot. So a trajectory is exactly what the model saw and sampled, and an episode has as many of them as it
had separate conversations.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from astraflow.raas.engine import Engine, Generation, GenerationRequest, Progress
from astraflow.records import LARGEST_REWARD
from astraflow.trajectory import Sampler, Trajectory
from astraflow.workflows.render import Message, Renderer, assistant
from astraflow.workflows.sequence import Answer, Asked, Mark, Tools
from astraflow.workflows.sequence import Sequence as TokenSequence
from astraflow.workflows.tools import Parser, ToolCall, hermes, plain, tool_names
from storage.errors import EpisodeError

if TYPE_CHECKING:
    from astraflow.config import Sampling

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Voice:
    """How a policy is asked: its engine, tokenizer and sampling. A ``frozen`` one needs no reward."""

    policy: str
    engine: Engine
    renderer: Renderer
    sampling: Sampling
    stop_ids: frozenset[int]
    frozen: bool = False
    parse_tools: Parser = hermes
    turn_timeout_s: float | None = None

    def handle(self, name: str, seed: str) -> RoleHandle:
        """The role ``name`` of one episode, played by this voice."""
        return RoleHandle(name, self, seed)

    @property
    def sampler(self) -> Sampler:
        """From which distribution it speaks unless told otherwise."""
        s = self.sampling
        return Sampler(s.temperature, s.top_p, s.top_k, s.min_p, tuple(s.stop))


class RoleHandle:
    """One role of one episode."""

    def __init__(self, name: str, voice: Voice, seed: str) -> None:
        self.name = name
        self.sequences: list[TokenSequence] = []
        self._voice = voice
        self._seed = seed

    @property
    def voice(self) -> Voice:
        """Who plays it."""
        return self._voice

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        seed: int | None = None,
        as_read: bool = False,
        progress: Progress | None = None,
    ) -> Answer:
        """Let the role answer a conversation, with the policy's sampling unless told otherwise.

        ``tools`` are JSON schemas as OpenAI has them; they are shown through the chat template. With ``as_read`` the
        answer's message leaves a stop text out, as servers do; with tools it always holds the calls apart.
        """
        renderer = self._voice.renderer
        messages = [plain(message) for message in messages]
        text = renderer.text(messages, tools)
        sequence = self._sequence_for(messages, text, tools, self._sampler(sampler, temperature))
        return await self._answer(Asked(sequence, messages, text, max_tokens, tools, as_read, progress, seed=seed))

    async def complete(
        self,
        prompt: str,
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
    ) -> Answer:
        """Let the role continue a raw text, without a chat template, in a sequence of its own."""
        sequence = self._begin(self._voice.renderer.prompt(prompt), self._sampler(sampler, temperature))
        return await self._answer(Asked(sequence, [], prompt, max_tokens))

    async def resume(self, answer: Answer, text: str, *, tool: str = "", max_tokens: int | None = None) -> Answer:
        """Let the role go on within an answer that was cut or ended by a stop text, after ``text`` without loss.

        So a search result comes to stand where it was asked for. Raises ``EpisodeError`` if more was said meanwhile,
        or if the answer was over.
        """
        sequence, mark = answer.sequence, answer.mark
        if mark is None or mark.stop_id is not None or not sequence.is_free_at(mark):
            raise EpisodeError(
                f"the answer in slot {sequence.trajectory.slot} of role {self.name!r} cannot be resumed",
                where="workflow",
                remedy="Only the last answer of a conversation that a stop text or the length ended can go on",
                kind="workflow",
            )
        sequence.inject(self._voice.renderer.encode(text), "tool" if tool else "user", tool)
        before = sequence.messages[:-1] if mark.messages else []
        turn = Asked(sequence, before, mark.cue, max_tokens, said=mark.text[len(mark.cue) :] + text)
        return await self._answer(turn)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_ids: frozenset[int] | None = None,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> Answer:
        """Let the role continue token ids. Ids that begin with all of a sequence's continue it."""
        ids, drawn = list(prompt_ids), self._sampler(sampler, None)
        found = [s for s in self.sequences if not s.open and s.sampler == drawn and ids[: len(s.ids)] == s.ids]
        sequence = max(found, key=lambda s: len(s.ids), default=None)
        if sequence is None or not sequence.was_sampled:
            sequence = self._begin(ids, drawn)
        else:
            sequence.inject(ids[len(sequence.ids) :], "user")
        cue = self._voice.renderer.decode(ids, special=True)
        return await self._answer(Asked(sequence, [], cue, max_tokens, progress=progress, seed=seed), stop_ids)

    def give(self, reward: float) -> None:
        """Reward every conversation of this role that has no reward yet."""
        for sequence in self.sequences:
            if sequence.reward is None:
                sequence.reward = float(reward)

    def trajectories(self) -> list[Trajectory]:
        """The finished trajectories; what was asked and never answered is left out.

        Raises ``EpisodeError`` if one has no finite reward: none is ever taken as 0.
        """
        rows = []
        for sequence in self.sequences:
            if not sequence.was_sampled:
                continue
            sequence.take_back()
            reward = 0.0 if sequence.reward is None and self._voice.frozen else sequence.reward
            if reward is None or not abs(reward) <= LARGEST_REWARD:  # nor what is not a number
                raise EpisodeError(
                    f"role {self.name!r} slot {sequence.trajectory.slot} has the reward {reward}",
                    where="workflow",
                    remedy="The workflow must set a finite answer.reward for every conversation",
                    kind="reward",
                )
            sequence.trajectory.reward = reward
            rows.append(sequence.trajectory)
        return rows

    def _sampler(self, sampler: Sampler | None, temperature: float | None) -> Sampler:
        drawn = sampler or self._voice.sampler
        return drawn if temperature is None else replace(drawn, temperature=temperature)

    def _sequence_for(self, messages: list[Message], text: str, tools: Tools | None, sampler: Sampler) -> TokenSequence:
        """The sequence that ``messages`` continue, with what is new in it; else a fork, else a new one."""
        found = [(mark, s) for s in self.sequences if (mark := s.extended_by(messages)) is not None]
        found.sort(key=lambda pair: (pair[0].messages, pair[1].is_free_at(pair[0]), pair[1].sampler == sampler))
        for mark, known in reversed(found):
            ids = self._injected(mark, messages, tools)
            if ids is None:
                continue
            if known.sampler == sampler and known.is_free_at(mark):
                new = messages[mark.messages :]
                known.inject(ids, new[0]["role"], tool_names(new, known.messages))
                return known
            return self._begin([*known.ids_at(mark), *ids], sampler)
        return self._begin(self._voice.renderer.prompt(text), sampler)

    def _injected(self, mark: Mark, messages: list[Message], tools: Tools | None) -> list[int] | None:
        renderer = self._voice.renderer
        if mark.exact:
            return renderer.continuation(mark.text, messages, mark.stop_id, tools)
        return renderer.continuation_of_reading(mark.cue, messages, mark.messages, mark.stop_id, tools)

    def _begin(self, prompt: list[int], sampler: Sampler) -> TokenSequence:
        row = Trajectory(self._voice.policy, self.name, len(self.sequences), prompt, [], [], [], [])
        row.temperature = sampler.temperature or 1.0  # greedy log-probs are those at 1
        row.sampler = sampler
        sequence = TokenSequence(row, sampler)
        self.sequences.append(sequence)
        return sequence

    async def _answer(self, turn: Asked, stop_ids: frozenset[int] | None = None) -> Answer:
        voice, sequence, sampler = self._voice, turn.sequence, turn.sequence.sampler
        row = sequence.trajectory
        own = _seed(f"{self._seed}/{self.name}/{row.slot}/{len(row.response_ids)}")
        request = GenerationRequest(
            policy=voice.policy,
            prompt_ids=tuple(sequence.ids),
            max_tokens=voice.sampling.max_tokens if turn.max_tokens is None else turn.max_tokens,
            stop_token_ids=voice.stop_ids if stop_ids is None else stop_ids,
            temperature=sampler.temperature,
            seed=own if turn.seed is None else turn.seed % 2**64,
            top_p=sampler.top_p,
            top_k=sampler.top_k,
            min_p=sampler.min_p,
            stop=sampler.stop,
            progress=turn.progress,
        )
        sequence.open = True
        try:
            generation = await self._in_time(voice.engine.generate(request))
        except BaseException:
            sequence.take_back()
            raise
        finally:
            sequence.open = False
        row.seeds.append(request.seed)
        return self._read(turn, request, generation)

    async def _in_time(self, work: Awaitable[T]) -> T:
        """``work`` within the deadline of a turn. Raises ``EpisodeError`` (``turn_timeout``) beyond it."""
        limit_s = self._voice.turn_timeout_s
        try:
            async with asyncio.timeout(limit_s) as deadline:
                return await work
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise EpisodeError(
                f"an answer of role {self.name!r} took longer than {limit_s:g} s", where="workflow", kind="turn_timeout"
            ) from error

    def _read(self, turn: Asked, request: GenerationRequest, generation: Generation) -> Answer:
        """Append what was sampled, and read it: its text, its tool calls, the message that it makes."""
        renderer, sequence, ids = self._voice.renderer, turn.sequence, generation.token_ids
        sequence.append(generation)
        is_over = generation.finish_reason == "stop" and ids[-1] in request.stop_token_ids
        spoken = ids[:-1] if is_over else ids
        text = content = renderer.decode(spoken, special=False)
        calls: list[ToolCall] = []
        if turn.as_read and generation.finish_reason == "stop" and not is_over:
            content = text[: min((i for s in request.stop if (i := text.find(s)) >= 0), default=len(text))]
        if turn.tools:
            content, found = self._voice.parse_tools(content)
            name = f"call-{sequence.trajectory.slot}-{len(sequence.trajectory.response_ids)}"
            calls = [ToolCall(f"{name}-{i}", tool, given) for i, (tool, given) in enumerate(found)]
        message = assistant(turn.said + content)
        if calls:
            message = {**message, "tool_calls": [call.message_part() for call in calls]}
        sequence.messages = [*turn.messages, message]
        whole = renderer.decode(spoken, special=True)
        mark = Mark(
            length=len(sequence.trajectory.response_ids),
            messages=len(sequence.messages) if turn.messages else 0,
            cue=turn.cue,
            text=turn.cue + turn.said + whole,
            stop_id=ids[-1] if is_over else None,
            exact=content == whole,
        )
        if sequence.marks and sequence.marks[-1].messages == mark.messages:
            sequence.marks.pop()  # the same message, gone on with
        sequence.marks.append(mark)
        return Answer(
            text=text,
            token_ids=ids,
            finish_reason=generation.finish_reason,
            sequence=sequence,
            logprobs=generation.logprobs,
            content=content,
            tool_calls=calls,
            prompt_tokens=len(request.prompt_ids),
            mark=mark,
        )


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

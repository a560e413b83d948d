"""Messages to token ids, the one way everybody does it: pools, warm-up and evaluation.

A tokenizer with a chat template renders through it; one without (a character tokenizer) gets ``<bos>`` and the
contents one after the other. What was sampled is never rendered again: ``continuation`` gives only the ids that
follow an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from astraflow.workflows import tools as tool_calls
from storage.errors import ConfigError, EpisodeError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = tool_calls.Message
_CACHED_TEXTS = 4096


def user(content: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    """A message of the system."""
    return {"role": "system", "content": content}


def assistant(content: str) -> Message:
    """A message of the model."""
    return {"role": "assistant", "content": content}


class Renderer:
    """One tokenizer, with the ids of texts kept: the episodes of a group begin alike."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer: Any = tokenizer
        self.has_template = bool(tokenizer.chat_template)
        self._bos = [] if self.has_template or tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
        self._ids: dict[str, list[int]] = {}

    def text(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, *, cue: bool = True
    ) -> str:
        """The messages and the model's ``cue`` to speak, as text (without the ``<bos>`` of a plain tokenizer)."""
        if not self.has_template:
            return "".join(message["content"] for message in messages)
        try:
            rendered: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=cue,
            )
        except TemplateError as error:
            raise EpisodeError(
                f"the chat template refuses the messages: {error}",
                where="workflow",
                remedy="It may know no such role, or not in this order",
                kind="template",
            ) from error
        return rendered

    def prompt(self, text: str) -> list[int]:
        """Ids of a rendered text at the beginning of a sequence."""
        return [*self._bos, *self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """Ids of a text, nothing added."""
        ids = self._ids.get(text)
        if ids is None:
            if len(self._ids) >= _CACHED_TEXTS:
                self._ids.clear()
            ids = self._ids[text] = list(self.tokenizer.encode(text, add_special_tokens=False))
        return ids

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """The text of ids; ``special`` tokens are written out or left out."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        return text

    def continuation(
        self,
        before: str,
        messages: Sequence[Message],
        stop_id: int | None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> list[int] | None:
        """The ids that lead from a sequence to the next answer, or None if ``messages`` do not extend it.

        ``before`` is the text that the sequence's ids stand for, up to its last answer, which ended with the token
        ``stop_id`` (None: it was cut by length). A template that changes what was said (strips thinking, trims
        spaces) or ends a turn with another token does not extend it: that needs a new sequence.
        """
        after = self.text(messages, tools)
        if not after.startswith(before):
            return None
        rest = after[len(before) :]
        if stop_id is not None:
            stop = self.decode([stop_id], special=True)
            if rest.startswith(stop):
                rest = rest[len(stop) :]
            elif self.has_template:
                return None
        return self.encode(rest)

    def continuation_of_reading(
        self,
        cue: str,
        messages: Sequence[Message],
        known: int,
        stop_id: int | None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> list[int] | None:
        """As ``continuation``, where the last of the ``known`` messages is what was read out of the answer.

        The template writes a tool call in its own words, so its text is no measure of what was sampled. What
        counts is that the answer followed ``cue``, and what the template has behind the answer's end.
        """
        if not self.has_template:
            return self.encode(self.text(messages[known:]))
        then, now = self.text(messages[:known], tools, cue=False), self.text(messages, tools)
        if not (then.startswith(cue) and now.startswith(then)):
            return None
        stop = self.decode([stop_id], special=True) if stop_id is not None else str(self.tokenizer.eos_token)
        end = then.rfind(stop, len(cue))
        if end < 0:
            return None
        return self.encode(then[end + (len(stop) if stop_id is not None else 0) :] + now[len(then) :])


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Ids of a conversation's beginning, up to where the model speaks."""
    renderer = Renderer(tokenizer)
    return renderer.prompt(renderer.text(messages))


def stop_ids(
    tokenizer: PreTrainedTokenizerBase, stop_tokens: Sequence[str], also: Sequence[int] = ()
) -> frozenset[int]:
    """Ids that end an answer: eos, ``also`` (the model's own) and the configured tokens. Raises ``ConfigError``."""
    found = {int(token) for token in also}
    if isinstance(tokenizer.eos_token_id, int):
        found.add(tokenizer.eos_token_id)
    vocabulary = tokenizer.get_vocab()
    for token in stop_tokens:
        if token not in vocabulary:
            raise ConfigError(
                f"the stop token {token!r} is not one token of the tokenizer",
                where="policies.…sampling.stop_tokens",
                remedy="Name a token of the vocabulary, such as '<|im_end|>'",
                kind="stop_token",
            )
        found.add(int(vocabulary[token]))
    if not found:
        raise ConfigError(
            "no token ends an answer: the tokenizer has no eos token",
            where="policies.…sampling.stop_tokens",
            remedy="Name one in stop_tokens",
            kind="stop_token",
        )
    return frozenset(found)

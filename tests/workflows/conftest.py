"""A voice with a scripted engine and small tokenizers, for playing workflows without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from astraflow.config import Sampling
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.scripted_engine import ScriptedEngine
from astraflow.workflows.render import Renderer
from astraflow.workflows.runtime import Voice

SPECIAL = ["<pad>", "<bos>", "<|end|>", "<think>", "</think>"]
CHATML = (
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
STRIPS_THINKING = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last else m.content }}",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def character_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a character, plus «ab» for the pair: ids of a text are not unique."""
    characters = [chr(c) for c in range(32, 127)] + ["\n", "ab"]
    vocabulary = {token: i for i, token in enumerate(SPECIAL + characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"ab|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<|end|>", unk_token="?"
    )
    fast.add_tokens(["<think>", "</think>"])
    fast.chat_template = template
    return fast


class Stage:
    """Voices of roles whose answers are scripted as texts (or ids), in the order in which they are asked."""

    def __init__(self, template: str | None = None) -> None:
        self.renderer = Renderer(character_tokenizer(template))
        self.stop_id: int = self.renderer.tokenizer.eos_token_id
        self.engines: dict[str, ScriptedEngine] = {}
        self.voices: dict[str, Voice] = {}

    def role(self, name: str, *answers: str | list[int], frozen: bool = False, **sampling: Any) -> Stage:
        lines: Iterator[str | list[int]] = iter(answers)

        def script(request: GenerationRequest) -> list[int]:
            line = next(lines)
            return line if isinstance(line, list) else [*self.ids(line), self.stop_id]

        engine = self.engines[name] = ScriptedEngine(script, decode=lambda ids: self.text(list(ids)))
        engine.version = 0
        self.voices[name] = Voice(
            policy=name,
            engine=engine,
            renderer=self.renderer,
            sampling=Sampling(**sampling),
            stop_ids=frozenset([self.stop_id]),
            frozen=frozen,
        )
        return self

    def ids(self, text: str) -> list[int]:
        return self.renderer.encode(text)

    def text(self, ids: list[int]) -> str:
        return self.renderer.decode(ids, special=True)

    def asked(self, name: str) -> list[str]:
        """What the role was shown, as text."""
        return [self.text(list(request.prompt_ids)) for request in self.engines[name].requests]


@pytest.fixture(scope="session")
def stage() -> Callable[..., Stage]:
    return Stage


@pytest.fixture(scope="session")
def chatml() -> str:
    return CHATML


@pytest.fixture(scope="session")
def strips_thinking() -> str:
    return STRIPS_THINKING

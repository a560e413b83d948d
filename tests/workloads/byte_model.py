"""A model without training whose tokens are bytes: any workload's texts go in and out of it, in no time."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from astraflow.models import write_untrained_qwen3
from tests.workflows.conftest import CHATML


def write_model(folder: Path) -> None:
    """A model of one layer whose tokens are bytes, so that every text comes back from its ids."""
    marks = ["<pad>", "<|end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([*marks, *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|end|>")
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(marks) + len(alphabet),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )
    write_untrained_qwen3(config, folder, seed=0)

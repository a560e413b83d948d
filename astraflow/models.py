# ruff: noqa: PLC0415 - config checks import this module in processes that never need torch
"""Models and tokenizers in Hugging Face format: find, build, load, and hand their files to the pools.

A policy's ``model`` is a folder with ``config.json`` and a tokenizer, or ``tiny-qwen3``: a 398,080-parameter Qwen3
with random weights and a character tokenizer, small enough that a whole run fits a laptop's core. Weights travel as
versions (``astraflow.weights``); the other files of the folder (config, tokenizer, chat template) are copied once under
``models/{policy}/`` in the store, so that a pool needs nothing but the store.

This module imports without torch: the heavy imports are inside the functions that need them, since config checks
run in processes that never train.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TINY_QWEN3 = "tiny-qwen3"
BUILT_IN = (TINY_QWEN3,)
TINY_VOCABULARY = ("<pad>", "<bos>", "<eos>", *"0123456789", *"+-*=?", " ")
"""Tokens of the tiny model in id order; ids from 19 to 31 are unused rows of the embedding."""

MODEL_FILES = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
"""The files of a model folder that are not weights; those that exist are copied beside the weights."""


def check_model(name_or_path: str, *, key: str = "model") -> None:
    """Raise ``ConfigError`` unless ``name_or_path`` is built in or a model folder. Needs no torch."""
    if name_or_path in BUILT_IN:
        return
    folder = Path(name_or_path)
    remedy = f"Set {key} to a folder that `save_pretrained` wrote, or to one of: {', '.join(BUILT_IN)}"
    if not folder.is_dir():
        raise ConfigError(f"there is no model folder {name_or_path!r}", where=key, remedy=remedy, kind="model")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"the folder {name_or_path!r} has no config.json", where=key, remedy=remedy, kind="model")
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{folder / 'config.json'} is not JSON: {error}", where=key, remedy=remedy) from error


def resolve_model(name_or_path: str, seed: int, cache_folder: Path, *, key: str = "model") -> Path:
    """The folder of a model; a built-in one is built under ``cache_folder`` on first use (same seed, same bytes)."""
    check_model(name_or_path, key=key)
    if name_or_path not in BUILT_IN:
        return Path(name_or_path)
    folder = cache_folder / f"{name_or_path}-{seed}"
    if not (folder / "config.json").is_file():
        unfinished = cache_folder / f".{name_or_path}-{uuid.uuid4().hex}"
        build_tiny_qwen3(unfinished, seed)
        try:
            unfinished.rename(folder)
        except OSError:  # another process built the same folder meanwhile
            shutil.rmtree(unfinished)
    return folder


def build_tiny_qwen3(folder: Path | str, seed: int) -> None:
    """Write the tiny Qwen3 (vocab 32, hidden 128, 2 layers, tied: 398,080 parameters) and its tokenizer."""
    from transformers import Qwen3Config

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=TINY_VOCABULARY.index("<pad>"),
        bos_token_id=TINY_VOCABULARY.index("<bos>"),
        eos_token_id=TINY_VOCABULARY.index("<eos>"),
    )
    write_untrained_qwen3(config, folder, seed)
    _character_tokenizer().save_pretrained(folder)


def write_untrained_qwen3(config: Any, folder: Path, seed: int) -> None:
    """Write a Qwen3 of this ``Qwen3Config`` with random weights: those of ``seed``, whatever was drawn before."""
    import torch
    from transformers import Qwen3ForCausalLM

    no_progress_bars()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)


def no_progress_bars() -> None:
    """Our processes write to logs."""
    from transformers.utils import logging

    switch: Any = logging.disable_progress_bar
    switch()


def _character_tokenizer() -> Any:
    """A tokenizer with one token a character (and the three special ones)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(TINY_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="?")


def load_causal_lm(folder: Path | str, dtype: torch.dtype) -> PreTrainedModel:
    """Load a causal LM with its weights in ``dtype``, in evaluation mode. Raises ``ConfigError``."""
    from transformers import AutoModelForCausalLM

    check_model(str(folder))
    no_progress_bars()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"no causal language model could be loaded: {error}",
            where=str(folder),
            remedy="The folder needs config.json of a causal LM and its *.safetensors",
            kind="model",
        ) from error
    _check_decoder(model, str(folder))
    loaded: PreTrainedModel = model.eval()
    return loaded


def empty_causal_lm(folder: Path | str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal LM of the folder's config with weights that are still to be loaded. Raises ``ConfigError``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    check_model(str(folder))
    try:
        config = AutoConfig.from_pretrained(folder)
        factory: Any = AutoModelForCausalLM
        model: Any = factory.from_config(config, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"no causal language model has this config: {error}",
            where=str(folder),
            remedy="The folder needs config.json of a causal LM",
            kind="model",
        ) from error
    _check_decoder(model, str(folder))
    loaded: PreTrainedModel = model.eval()
    return loaded


def context_of(config: Any) -> int | None:
    """The most tokens that a model of this config can take; None if nothing says so (positions without a table)."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        found = getattr(text, name, None)
        if isinstance(found, int) and found > 0:
            return found
    return None


def _check_decoder(model: Any, where: str) -> None:
    """Raise ``ConfigError`` for a model whose state is no cache of keys and values: engines could not decode it."""
    if getattr(model, "_is_stateful", False):
        raise ConfigError(
            f"{type(model).__name__} keeps a state instead of a cache of keys and values, which no engine here decodes",
            where=where,
            remedy="Use a transformer with attention layers",
            kind="model",
        )


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder. Raises ``ConfigError`` if there is none, or it has no eos token."""
    from transformers import AutoTokenizer

    remedy = "Put the files of the model's tokenizer (tokenizer.json, tokenizer_config.json) into the folder"
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"no tokenizer could be loaded: {error}", where=str(folder), remedy=remedy, kind="model"
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "the tokenizer has no eos token, so no answer would ever end",
            where=str(folder),
            remedy="Set eos_token in tokenizer_config.json",
            kind="model",
        )
    return tokenizer


def upload_model_files(store: ObjectStore, keys: RunKeys, policy: str, folder: Path) -> list[str]:
    """Copy the folder's files other than weights under ``models/{policy}/``, config.json last; returns their names."""
    names = [name for name in MODEL_FILES if (folder / name).is_file()]
    for name in sorted(names, key=lambda name: name == "config.json"):
        store.create(keys.model_files(policy) + name, (folder / name).read_bytes())
    return names


def download_model_files(store: ObjectStore, keys: RunKeys, policy: str, folder: Path) -> None:
    """Copy the policy's files from the store into ``folder``. Raises ``NotFound`` if no trainer has put them there."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = keys.model_files(policy)
    names = [info.key.removeprefix(prefix) for info in store.list(prefix)]
    if "config.json" not in names:
        raise NotFound(
            f"the files of policy {policy!r} are not there yet",
            where=prefix,
            remedy="Its trainer writes them before version 0",
            kind="missing",
        )
    for name in names:
        if name in MODEL_FILES:
            (folder / name).write_bytes(store.get(prefix + name))

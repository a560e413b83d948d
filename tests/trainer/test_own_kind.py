"""The example of the documentation trains, is short, and is trained again as it was by a later life."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from astraflow.records import Consumed
from astraflow.trainer.kinds import KINDS
from astraflow.trainer.losses import LOSSES
from tests.trainer.test_resume import check_equal, killed_at, live, recorded

PAGE = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()


@pytest.fixture
def best_of_n(tmp_path, monkeypatch):
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(text.splitlines()) < 60
    (tmp_path / "best_of_n.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "best_of_n:BestOfN"
    sys.modules.pop("best_of_n", None)


def test_the_documented_objective_trains_and_resumes(make_run, best_of_n):
    straight = recorded(make_run, "straight", kind=best_of_n, checkpoint_every=50)
    live(straight, 0)
    told = [fact.metrics for fact in straight.facts() if isinstance(fact, Consumed)]
    assert len(told) == 6 and all(0 < metrics["kept_share"] <= 1 for metrics in told)
    assert all(metrics["loss"] > 0 and metrics["grad_norm"] > 0 for metrics in told)
    run = recorded(make_run, "killed", kind=best_of_n, checkpoint_every=50)
    assert killed_at(run, 0, "trainer.after_consumed", 3)
    live(run, 1)
    check_equal(run, straight)


def test_the_page_has_every_loss_and_kind():
    for name in [*LOSSES, *KINDS]:
        assert f"| `{name}` |" in PAGE

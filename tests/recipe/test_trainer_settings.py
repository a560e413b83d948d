"""Wrong kinds and teachers are said before a run is written."""

from __future__ import annotations

import pytest

from astraflow.bootstrap import check_config
from astraflow.models import build_tiny_qwen3
from astraflow.recipe import load_recipe
from storage.errors import ConfigError

RECIPE = """
name = "x"
problems = { source = "addition" }
policies.solver = { model = "tiny-qwen3" }
"""


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["trainer.kind=rll"], "policies.solver.trainer.kind"),
        (["trainer.kind=distill"], "policies.solver.trainer.teacher"),
        (["trainer.kind=distill", "trainer.teacher=nowhere"], "policies.solver.trainer.teacher"),
        (["trainer.loss.name=m2ppo"], "policies.solver.trainer.loss.name"),
    ],
)
def test_what_only_the_trainer_would_meet_is_said_at_the_start(tmp_path, overrides, where):
    (tmp_path / "x.toml").write_text(RECIPE)
    with pytest.raises(ConfigError) as raised:
        check_config(load_recipe(tmp_path / "x.toml", [*overrides, f"store={tmp_path}"]))
    assert raised.value.where == where


def test_a_teacher_is_looked_for_beside_the_recipe(tmp_path):
    build_tiny_qwen3(tmp_path / "teacher", 0)
    (tmp_path / "x.toml").write_text(RECIPE + 'trainer = { kind = "distill", teacher = "teacher" }\n')
    config = load_recipe(tmp_path / "x.toml", [f"store={tmp_path}"])
    assert config.trainer.teacher == str(tmp_path / "teacher")
    check_config(config)


def test_only_the_ranks_of_trainers_may_be_said_again(tmp_path):
    """How many processes share a model is of the machines; everything else of a run is frozen."""
    (tmp_path / "x.toml").write_text(RECIPE + 'policies.judge = { model = "tiny-qwen3", trainer = { lr = 0.5 } }\n')
    config = load_recipe(tmp_path / "x.toml", [f"store={tmp_path}", "trainer.ranks=2"])
    other = config.with_ranks({"solver": 1, "judge": 2, "unknown": 9})
    assert (other.trainer_of("solver").ranks, other.trainer_of("judge").ranks) == (1, 2)
    assert other.policies["judge"] == config.policies["judge"]
    back = other.with_ranks({"solver": 2})
    assert [back.trainer_of(name) for name in back.policies] == [config.trainer_of(name) for name in config.policies]
    assert config.with_ranks({}) == config

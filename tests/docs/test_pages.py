"""The pages for maintainers speak of what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from astraflow.bootstrap import check_config
from astraflow.config import RunConfig
from astraflow.dataflow.algorithms import CURATORS, FILTERS, ORDERS, REPLAYS
from astraflow.recipe import load_recipe
from astraflow.rewards import BUILT_IN as REWARDS
from astraflow.trainer.losses import LOSSES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("ARCHITECTURE.md", "AGENTS.md", "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    assert [path for path in named if not any((ROOT / base / path).is_file() for base in ("", "astraflow"))] == []


def test_the_extension_table_lists_what_is_built_in() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rows = [line for line in page[page.index("## Extending it") :].splitlines() if line.startswith("| ")]
    listed = [set(re.findall(r"`(\w+)`", row.split("|")[3])) for row in rows]
    for registry in (CURATORS, FILTERS, ORDERS, REPLAYS, REWARDS, LOSSES):
        assert set(registry) in listed


def test_the_form_names_what_is_built_in() -> None:
    form = json.dumps(RunConfig.model_json_schema())
    for registry in (CURATORS, FILTERS, ORDERS, REPLAYS, REWARDS, LOSSES):
        assert [name for name in registry if not re.search(rf"\b{name}\b", form)] == []


def test_the_recipe_of_the_readme_runs(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (line,) = re.findall(r"# (\{.*\}) a line", text)
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "my-problems.jsonl").write_text(f"{line}\n")
    config = load_recipe(tmp_path / "mine.toml", ["policies.solver.model=tiny-qwen3", f"store={tmp_path}"])
    frozen, (problem,) = check_config(config)
    assert (frozen.problem_count, problem.answer) == (1, "46")


def test_the_workflow_of_the_readme_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(from astraflow.workflows.*?)```", README, re.DOTALL)
    (tmp_path / "readme_workflow.py").write_text(text)
    recipe = """
name = "w"
problems = { source = "addition" }
policies = { solver = { model = "tiny-qwen3" }, checker = { model = "tiny-qwen3" } }
workflow.name = "readme_workflow:solve_and_check"
"""
    (tmp_path / "w.toml").write_text(recipe)
    config, _ = check_config(load_recipe(tmp_path / "w.toml"))
    assert set(config.trained) == {"solver", "checker"}

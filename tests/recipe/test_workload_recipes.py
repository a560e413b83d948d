"""The workloads' recipes say what can be run: what `astraflow run RECIPE --dry-run` checks, with data and models put
in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow.bootstrap import check_config
from astraflow.recipe import load_recipe
from astraflow.workloads.search.corpus import FOLDOC

RECIPES = Path(__file__).parents[2] / "infra" / "recipes"
NAMES = sorted(p.stem for p in RECIPES.glob("*.toml") if p.stem.rpartition("-")[0].partition("-")[0] in
               {"workload", "maths", "gym", "code", "search", "shop", "household"})  # fmt: skip
ROWS = {
    "deepscaler": {"problem": "p", "answer": "1", "solution": "s"},
    "deepcoder": {"problem": "p", "solutions": ["s"], "tests": {"inputs": ["1"], "outputs": ["2"]}},
    "asearcher": {"question": "q", "answer": "a", "id": "1"},
}


@pytest.mark.parametrize("name", NAMES)
def test_dry_run(name: str, tmp_path: Path) -> None:
    if name == "search-cpu" and not FOLDOC.with_suffix(".index").exists():
        pytest.skip("dict-foldoc is not installed")
    (tmp_path / "config.json").write_text("{}")
    config = load_recipe(RECIPES / f"{name}.toml")
    overrides = [f"policies.{policy}.model={tmp_path}" for policy in config.policies]
    if config.problems.source.endswith(".jsonl"):
        data = tmp_path / "data.jsonl"
        data.write_text(json.dumps(ROWS[config.problems.options["format"]]))
        overrides += [f"problems.options.format={config.problems.options['format']}", f"problems.source={data}"]
    if "path" in config.problems.options:
        game = tmp_path / "pick_and_place_simple-Mug-None-Desk-308" / "trial" / "game.tw-pddl"
        game.parent.mkdir(parents=True)
        game.write_text(json.dumps({"pddl_domain": "", "pddl_problem": "", "grammar": ""}))
        overrides.append(f"problems.options.path={tmp_path}")
    if "count" in config.problems.options:
        overrides.append("problems.options.count=8")
    frozen, problems = check_config(load_recipe(RECIPES / f"{name}.toml", overrides))
    assert frozen.problem_count == len(problems) > 0
    suffix = config.problems.options.get("suffix", "")
    assert all(problem.prompt.endswith(suffix) for problem in problems)


def test_comparisons_are_short_overlays() -> None:
    overlays = list(RECIPES.glob("*-gpu-*.toml"))
    assert len(overlays) >= 3
    for path in overlays:
        text = path.read_text()
        assert "extends" in text and len(text.splitlines()) < 15
        assert len(load_recipe(path).policies) == 2

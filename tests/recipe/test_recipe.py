"""Recipes: layers, overrides, paths, and one clear message for each kind of bad input."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.bootstrap import check_config
from astraflow.component import use_code
from astraflow.config import RunConfig
from astraflow.recipe import dump_toml, load_recipe, load_run_config, parse_toml, store_url
from astraflow.toml import dump_table
from storage import open_store
from storage.errors import ConfigError
from storage.memory import MemoryStore

BASE = """
name = "base"
[policies.solver]
model = "tiny-qwen3"
[problems]
source = "addition"
options = { digits = 1 }
[trainer]
lr = 1e-4
betas = [0.9, 0.95]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(BASE)
    return tmp_path


def write(folder: Path, text: str, name: str = "recipe.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def failing(path: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    assert caught.value.exit_code == 2
    return caught.value


def test_overlay_merges_tables_and_replaces_values(folder: Path) -> None:
    path = write(folder, 'extends = "base.toml"\nname = "over"\ntrainer.steps = 7\ntrainer.betas = [0.8, 0.9]\n')
    config = load_recipe(path)
    assert (config.name, config.trainer.steps, config.trainer.lr) == ("over", 7, 1e-4)
    assert config.trainer.betas == (0.8, 0.9)
    assert config.problems.options == {"digits": 1}


def test_overlay_of_overlay_from_another_folder(folder: Path) -> None:
    write(folder, 'extends = "../base.toml"\ntrainer.steps = 3\ntrainer.lr = 5e-4\n', "deep/middle.toml")
    config = load_recipe(write(folder, 'extends = "middle.toml"\ntrainer.steps = 4\n', "deep/top.toml"))
    assert (config.trainer.steps, config.trainer.lr) == (4, 5e-4)


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("trainer.lr=1e-6", lambda c: c.trainer.lr, 1e-6),
        ("name=second", lambda c: c.name, "second"),
        ("name=7", lambda c: c.name, "7"),
        ('name="q-1"', lambda c: c.name, "q-1"),
        ("pools.local.policies=['solver']", lambda c: c.pools["local"].policies, ["solver"]),
        ("dataflow.replay.name=none", lambda c: c.dataflow.replay.name, "none"),
        ("problems.options.digits=2", lambda c: c.problems.options, {"digits": 2}),
        ("policies.solver.trainer.lr=2e-5", lambda c: c.trainer_of("solver").lr, 2e-5),
        ("trainer.lr=null", lambda c: c.trainer.lr, 1e-6),
        ("workflow.options.when=2024-05-01", lambda c: c.workflow.options, {"when": "2024-05-01"}),
    ],
)
def test_overrides(folder: Path, override: str, read, expected: object) -> None:  # type: ignore[no-untyped-def]
    assert read(load_recipe(folder / "base.toml", [override])) == expected


def test_paths_are_relative_to_the_file_that_names_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 'extends = "../base.toml"\nproblems.source = "data.jsonl"\nproblems.options = {}\n', "sub/mid.toml")
    path = write(folder, 'extends = "sub/mid.toml"\npolicies.solver.model = "models/a"\n')
    config = load_recipe(path)
    assert config.problems.source == str(folder / "sub" / "data.jsonl")
    assert config.policies["solver"].model == str(folder / "models" / "a")
    monkeypatch.chdir(folder / "sub")
    assert load_recipe(path, ["problems.source=here.jsonl"]).problems.source == str(folder / "sub" / "here.jsonl")
    assert load_recipe(folder / "base.toml").policies["solver"].model == "tiny-qwen3"


def test_store_becomes_a_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    path = folder / "base.toml"
    assert load_recipe(path).store == (folder / ".astraflow" / "store").as_uri()
    assert load_recipe(path, ["store=data"], default_store="s3://a/b").store == (folder / "data").as_uri()
    assert load_recipe(path, default_store="s3://a/b").store == "s3://a/b"
    assert store_url(store_url("with space")) == store_url("with space")


def test_missing_recipe_names_its_neighbours(folder: Path) -> None:
    error = failing(folder / "bse.toml")
    assert "bse.toml" in error.where
    assert "base.toml" in error.remedy


def test_not_toml_names_the_line(folder: Path) -> None:
    assert "line 2" in failing(write(folder, "name = 'a'\nlr = = 3\n")).what


def test_not_text(folder: Path) -> None:
    path = folder / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in failing(path).what


def test_an_extends_may_name_a_built_in_recipe(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    ours = tmp_path_factory.mktemp("built-in")
    write(ours, BASE.replace('"base"', '"ours"'), "ours.toml")
    write(ours, BASE.replace('"base"', '"hidden"'), "base.toml")
    path = write(folder, 'extends = "ours.toml"\ntrainer.steps = 7\n')
    config = load_recipe(path, built_in=ours)
    assert (config.name, config.trainer.steps) == ("ours", 7)
    beside = write(folder, 'extends = "base.toml"\n', "beside.toml")
    assert load_recipe(beside, built_in=ours).name == "base", "a file beside the recipe comes first"
    assert failing(path).kind == "no_file"
    with pytest.raises(ConfigError, match="no such recipe"):
        load_recipe(write(folder, 'extends = "../ours.toml"\n', "far.toml"), built_in=ours)


OPTIONS = """
extends = "base.toml"
[problems.reward]
name = "shuffled"
options = { rate = 0.5 }
[dataflow]
curator = { name = "curriculum", options = { easy = 0.9 } }
[workflow]
options = { prompt = "x" }
"""


def test_options_go_with_what_they_are_for(folder: Path) -> None:
    write(folder, OPTIONS, "options.toml")
    kept = load_recipe(write(folder, 'extends = "options.toml"\nname = "other"\nproblems.source = "addition"\n'))
    assert (kept.problems.options, kept.problems.reward.options) == ({"digits": 1}, {"rate": 0.5})
    assert (kept.dataflow.curator.options, kept.workflow.options) == ({"easy": 0.9}, {"prompt": "x"})
    other = """
extends = "options.toml"
problems = { source = "mine.jsonl", reward = { name = "exact" } }
dataflow.curator = { name = "greso", options = { window = 3 } }
workflow.name = "solve_and_verify"
"""
    changed = load_recipe(write(folder, other))
    assert (changed.problems.options, changed.problems.reward.options) == ({}, {})
    assert (changed.dataflow.curator.options, changed.workflow.options) == ({"window": 3}, {})
    same = load_recipe(write(folder, 'extends = "options.toml"\nworkflow.name = "solve"\n'))
    assert same.workflow.options == {"prompt": "x"}, "the name that it has by default is no other"


def test_options_of_the_command_line_stay_in_either_order(folder: Path) -> None:
    for overrides in (
        ["dataflow.curator.options.window=3", "dataflow.curator.name=greso"],
        ["dataflow.curator.name=greso", "dataflow.curator.options.window=3"],
    ):
        assert load_recipe(folder / "base.toml", overrides).dataflow.curator.options == {"window": 3}
    assert load_recipe(folder / "base.toml", ["problems.source=mine.jsonl"]).problems.options == {}


def test_stores_of_regions_mean_the_same_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    path = write(folder / "sub", BASE + '[regions.a]\nstore = "bucket"\n[regions.b]\nstore = "s3://b/x"\n[regions.c]\n')
    stores = {name: region.store for name, region in load_recipe(path).regions.items()}
    assert stores == {"a": (folder / "bucket").as_uri(), "b": "s3://b/x", "c": None}


def test_circle(folder: Path) -> None:
    write(folder, 'extends = "b.toml"\n', "a.toml")
    error = failing(write(folder, 'extends = "a.toml"\n', "b.toml"))
    assert error.kind == "circle"
    assert "b.toml -> a.toml -> b.toml" in error.what


def test_extends_must_be_a_name(folder: Path) -> None:
    assert "extends = 3" in failing(write(folder, "extends = 3\n")).what


def test_unknown_key_suggests_the_nearest(folder: Path) -> None:
    error = failing(write(folder, 'extends = "base.toml"\ntrainer.stepz = 4\n'))
    assert "trainer.stepz = 4" in error.what
    assert "'steps'" in error.remedy
    assert error.where.endswith("recipe.toml")


def test_error_in_a_base_names_the_base(folder: Path) -> None:
    write(folder, BASE.replace("lr = 1e-4", "lr = -1"), "bad.toml")
    error = failing(write(folder, 'extends = "bad.toml"\n'))
    assert "trainer.lr = -1" in error.what
    assert "bad.toml" in error.what
    assert "greater than 0" in error.what


def test_error_in_an_override_names_it(folder: Path) -> None:
    error = failing(folder / "base.toml", "trainer.batch_size=none")
    assert "override 'trainer.batch_size=none'" in error.what
    assert "trainer.batch_size = 'none'" in error.what


def test_unknown_key_of_a_policys_trainer(folder: Path) -> None:
    error = failing(folder / "base.toml", "policies.solver.trainer.learning_rate=1")
    assert "policies.solver.trainer.learning_rate = 1" in error.what
    assert "unknown key" in error.what


def test_unknown_key_inside_named_sections(folder: Path) -> None:
    assert "'capacity'" in failing(folder / "base.toml", "pools.local.capcity=2").remedy


def test_missing_key_says_what_it_is(folder: Path) -> None:
    error = failing(folder / "base.toml", "problems.source=null")
    assert "problems.source: is missing" in error.what
    assert "generator" in error.remedy


def test_several_errors_at_once(folder: Path) -> None:
    error = failing(write(folder, 'extends = "base.toml"\ntrainer.lr = 0\nname = "No!"\nfoo = 1\n'))
    assert error.what.startswith("3 errors")
    for part in ("trainer.lr = 0", "name = 'No!'", "foo = 1", "lower-case"):
        assert part in error.what


def test_role_of_an_unknown_policy(folder: Path) -> None:
    assert "'critic'" in failing(folder / "base.toml", "workflow.roles.solver=critic").what


@pytest.mark.parametrize("override", ["trainer.lr", "=3", "a..b=1"])
def test_not_an_override(folder: Path, override: str) -> None:
    assert repr(override) in failing(folder / "base.toml", override).what


def test_override_through_a_value(folder: Path) -> None:
    assert "trainer.lr is not a table" in failing(folder / "base.toml", "trainer.lr.x=1").what


def test_dump_is_an_exact_round_trip(folder: Path) -> None:
    overrides = [
        "workflow.options={a = 'x\\ty', b = [1, 2.0, true], c = { d = 'é\"' } }",
        "dataflow.filters=[{ name = 'overlong', options = { limit = 3 } }]",
        "pools.eu={ region = 'eu', flush_s = 0.5 }",
        "policies.solver.warmup={ max_steps = 3 }",
    ]
    config = load_recipe(folder / "base.toml", overrides)
    again = parse_toml(dump_toml(config), where="dump")
    assert again == config
    assert again.model_dump(mode="json") == config.model_dump(mode="json")
    assert RunConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config


values = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), values, max_size=4))
def test_writer_round_trip(table: dict[str, object]) -> None:
    import tomllib

    again = tomllib.loads(dump_table(table))
    assert again == table
    assert repr(again) == repr({**again}) == repr(_sorted_like(again, table))


def _sorted_like(table: object, order: object) -> object:
    """``order`` with the key order of ``table``: so that ``repr`` compares types, not order."""
    if isinstance(table, dict) and isinstance(order, dict):
        return {key: _sorted_like(table[key], order[key]) for key in table}
    return order


def test_writer_refuses_what_toml_has_not() -> None:
    with pytest.raises(ConfigError) as caught:
        dump_table({"a": {"b": [None]}})
    assert caught.value.where == "a.b"


def test_frozen_config_of_a_run(folder: Path) -> None:
    config = load_recipe(folder / "base.toml")
    store = MemoryStore("memory://frozen")
    store.put("base/run.toml", dump_toml(config).encode())
    assert load_run_config(store, "base") == config
    with pytest.raises(ConfigError, match="no run 'other'"):
        load_run_config(store, "other")


def test_built_in_recipes_load() -> None:
    recipes = Path(__file__).parents[2] / "infra" / "recipes"
    loaded = {path.stem: load_recipe(path) for path in recipes.glob("*.toml")}
    assert {"tiny-add", "tiny-add-verify", "tiny-add-control"} <= set(loaded)
    for stem, config in loaded.items():
        assert config.name == stem
    for overlay in ("tiny-add-verify", "tiny-add-control"):
        assert len((recipes / f"{overlay}.toml").read_text().splitlines()) < 15


def test_store_urls_open(tmp_path: Path) -> None:
    assert open_store(store_url(str(tmp_path / "a b"))).url == store_url(str(tmp_path / "a b"))


def test_own_code_is_looked_for_beside_the_recipe(folder: Path) -> None:
    assert load_recipe(folder / "base.toml").code == []
    own = 'extends = "../base.toml"\nproblems.reward.name = "my_rewards:score"\n'
    assert load_recipe(write(folder, own, "deep/own.toml")).code == [
        str(folder.resolve() / "deep"),
        str(folder.resolve()),
    ]
    elsewhere = write(folder, own + 'code = ["lib"]\n', "deep/elsewhere.toml")
    assert load_recipe(elsewhere).code == [str(folder / "deep" / "lib")]
    assert load_recipe(elsewhere, ["code=[]"]).code == []


def test_own_code_is_imported_when_a_run_is_checked(folder: Path) -> None:
    recipe = write(folder, 'extends = "base.toml"\nproblems.reward.name = "own_code_here:score"\n')
    recipe.write_text(recipe.read_text() + "problems.options = { digits = 1, count = 5 }\n")
    with pytest.raises(ConfigError, match="beside the recipe"):
        check_config(load_recipe(recipe))
    (folder / "own_code_here.py").write_text("def score(problem, text):\n    return 1.0\n")
    frozen, _ = check_config(load_recipe(recipe))
    assert parse_toml(dump_toml(frozen), where="").code == [str(folder.resolve())]
    (folder / "own_code_broken.py").write_text("def score(:\n")
    with pytest.raises(ConfigError, match="cannot be imported"):
        check_config(load_recipe(recipe, ["problems.reward.name=own_code_broken:score"]))


def test_folders_of_code_that_are_not_here_are_passed_over(tmp_path: Path) -> None:
    before = list(sys.path)
    try:
        use_code([str(tmp_path / "missing"), str(tmp_path)])
        use_code([str(tmp_path)])
        assert sys.path == [*before, str(tmp_path)]
    finally:
        sys.path[:] = before

"""One deployment a recipe, each a form that is filled in with it; other TOML files of a project are left alone."""

from pathlib import Path

import pytest

from astraflow.config import RunConfig
from infra.deployments import OF_REGION, local_deployments, recipe_deployments, region_deployments
from infra.places import find_recipes
from infra.regions import Place, places, recipes

OWN = """
extends = "base.toml"
name = "own"
trainer.steps = 7
"""
BASE = """
name = "base"
[policies.solver]
model = "tiny-qwen3"
[problems]
source = "addition"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASTRAFLOW_STORE", str(tmp_path / "store"))
    (tmp_path / "recipes").mkdir()
    for name, text in {
        "recipes/base.toml": BASE,
        "recipes/own.toml": OWN,
        "recipes/broken.toml": 'extends = "nothing.toml"',
        "tiny-add.toml": BASE,
        "pyproject.toml": '[project]\nname = "x"',
        "local.toml": BASE,
        "not.toml": "x =",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_recipes_are_found_by_what_they_are(project: Path) -> None:
    found = {file.stem: file for file in find_recipes(project)}
    built_in = {file.stem for file in find_recipes(project / "recipes" / "none")}
    assert {"tiny-add", "tiny-add-control", "tiny-add-verify"} <= built_in
    assert set(found) == {"base", "broken", "own", *built_in}
    assert found["tiny-add"].parent == project


def test_each_recipe_is_a_form_filled_in(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployments = {deployment.name: deployment for deployment in recipe_deployments(project)}
    assert {"base", "own", "tiny-add", "tiny-add-control", "tiny-add-verify"} <= set(deployments)
    assert "broken" not in deployments
    assert "broken.toml" in capsys.readouterr().err
    own = deployments["own"]
    assert (own.flow_name, own.parameters["resume"]) == ("experiment", False)
    config = RunConfig.model_validate(own.parameters["config"])
    assert (config.name, config.trainer.steps, config.store) == ("own", 7, (project / "store").as_uri())
    assert "data_hash" not in own.parameters["config"]
    assert "own.toml" in (own.description or "")
    assert "config" in own._parameter_openapi_schema.properties


def test_every_field_of_a_form_has_a_description(project: Path) -> None:
    experiment, operate = (d for d in local_deployments() if d.flow_name in ("experiment", "operate"))
    assert experiment.parameters == {"config": {"store": (project / "store").as_uri()}}
    assert operate.parameters == {"store": (project / "store").as_uri()}
    sections = experiment._parameter_openapi_schema.definitions
    assert {"RunConfig", "Trainer", "Dataflow"} <= set(sections)
    bare = [
        f"{section}.{name}"
        for section, schema in sections.items()
        for name, field in schema.get("properties", {}).items()
        if not field.get("description") and not sections[field["$ref"].rpartition("/")[2]].get("description")
    ]
    assert bare == []
    assert all(field.get("description") for field in operate._parameter_openapi_schema.properties.values())


# --- regions --------------------------------------------------------------------------------------

TWO = """
extends = "tiny-add.toml"
name = "two"
[regions.west]
store = "west-bucket"
[pools.west]
region = "west"
[pools.north]
region = "north"
"""


def region_recipes(folder: Path, **texts: str) -> tuple[list[Place], list[str]]:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return places(config for _, config in recipes(folder)[0])


def test_a_folder_without_regions_has_no_places(tmp_path: Path) -> None:
    assert region_recipes(tmp_path) == ([], [])


def test_the_regions_of_all_recipes_together(tmp_path: Path) -> None:
    found, faults = region_recipes(tmp_path, two=TWO, three='extends = "two.toml"\n[pools.south]\nregion = "south"\n')
    assert faults == []
    assert found == [Place("north", None, False), Place("south", None, False), Place("west", None, True)]


def test_a_region_whose_work_pool_is_not_clear_is_left_out_and_said(tmp_path: Path) -> None:
    other = 'extends = "two.toml"\nregions.west.work_pool = "gpus"\nregions.local.work_pool = "gpus"\n'
    found, faults = region_recipes(tmp_path, two=TWO, other=other)
    assert [place.region for place in found] == ["north"]
    assert [fault.partition(":")[0] for fault in faults] == [
        "the region local is this machine's runner",
        "no deployment for the region west",
    ]
    assert "(gpus, none)" in faults[1]


def test_the_deployments_of_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_LOGGING_EXTRA_LOGGERS", "astraflow")
    monkeypatch.delenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", raising=False)
    pool, mirror = region_deployments(Place("west", None, True))
    assert (pool.flow_name, pool.name) == ("raas_pool", "west")
    assert (mirror.flow_name, mirror.name) == ("region_mirror", "west")
    assert pool.work_pool_name is None
    assert {"astraflow", OF_REGION, "region:west"} <= set(pool.tags or [])
    (there,) = region_deployments(Place("west", "gpus", False))
    assert (there.work_pool_name, there.work_queue_name) == ("gpus", "west")
    assert there.job_variables == {"env": {"PREFECT_LOGGING_EXTRA_LOGGERS": "astraflow"}}
    assert there.entrypoint == "flows.raas_pool.raas_pool"
    assert "prefect worker start --pool gpus --work-queue west" in Place("west", "gpus", False).described

"""One deployment a recipe, each a form that is filled in with it; other TOML files of a project are left alone."""

from pathlib import Path

import pytest

from astraflow.config import RunConfig
from infra.deployments import find_recipes, local_deployments, recipe_deployments

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
    assert set(found) == {"base", "broken", "own", "tiny-add", "tiny-add-control", "tiny-add-verify"}
    assert found["tiny-add"].parent == project


def test_each_recipe_is_a_form_filled_in(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployments = {deployment.name: deployment for deployment in recipe_deployments(project)}
    assert set(deployments) == {"base", "own", "tiny-add", "tiny-add-control", "tiny-add-verify"}
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

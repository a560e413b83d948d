"""The deploy file: the document's example is one, and what is wrong with another is said with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.deploy_file import DeployFile, read_deploy_file
from storage.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"
SMALL = 'store = "s3://b/x"\nhome = "here"\n[work_pools.here]\n'


def read(folder: Path, text: str) -> DeployFile:
    (folder / "deploy.toml").write_text(text)
    return read_deploy_file(folder / "deploy.toml")


def test_the_page_s_example_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = read(tmp_path, text)
    assert file.regions["eu-west"].hardware == {"l40s": "eu-west"}
    assert file.load_reports.deployment == "my-scaler/main"


def test_a_small_one_is_filled_up(tmp_path: Path) -> None:
    file = read(tmp_path, SMALL)
    assert (file.name, file.maintenance.cron, file.work_pools["here"].kind) == ("astraflow", "30 3 * * *", "process")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[trainers]\nwork_pool = "there"', "trainers.work_pool names the work pool 'there'; there are: here"),
        ('[regions.west]\nwork_pool = "here"\nhardware = {a = "b"}', "regions.west.hardware.a names the work pool 'b'"),
        ('[regions.west]\nwork_pool = "here"\nwindows = ["18-8"]', "'18-8' is not a window"),
        ('[regions.west]\nwork_pool = "here"\ntimezone = "Nowhere"', "'Nowhere' is not a time zone"),
        ('[regions.local]\nwork_pool = "here"', "regions.local: that is home"),
        ('[failures]\nblock = "ops"', "'ops' needs two names with a slash between them"),
        ('[maintenance]\ntimezone = "Nowhere"', "'Nowhere' is not a time zone"),
        ("[maintenance]\nwhen = 3", "maintenance.when"),
        ("[[", "not TOML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f"{SMALL}{more}\n")
    assert said in str(caught.value)
    assert caught.value.where.endswith("deploy.toml")


def test_a_schedule_that_is_none(tmp_path: Path) -> None:
    from infra.installation import installation

    with pytest.raises(ConfigError, match="'soon' is no cron expression"):
        installation(read(tmp_path, f"{SMALL}[maintenance]\ncron = 'soon'\n"), tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--file"):
        read_deploy_file(tmp_path / "none.toml")

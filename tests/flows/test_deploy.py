"""``astraflow deploy`` against a server: all of it once, nothing the second time, only what differs the third."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.events.actions import RunDeployment, SendNotification
from prefect.events.schemas.automations import Automation, EventTrigger
from prefect.events.schemas.events import Resource
from prefect.exceptions import ObjectNotFound

from flows.launcher import known_deployments
from infra import automations
from infra.applying import Applying, Change
from infra.deploy_file import read_deploy_file
from infra.installation import COMMON_ENV, Installation, installation
from storage.errors import ConfigError

pytestmark = pytest.mark.usefixtures("prefect_server")

FILE = """
name = "office"
store = "s3://runs/astraflow"
home = "d-central"
recipes = ["tiny-add"]
env = {AWS_REGION = "eu-central-1"}
[work_pools.d-central]
[work_pools.d-train]
kind = "kubernetes"
variables = {image = "registry/astraflow:1", resources = {"nvidia.com/gpu" = 8}}
[work_pools.d-west]
kind = "ecs"
limit = 6
variables = {image = "registry/astraflow:1", execution_role_arn = "arn:e", task_role_arn = "arn:t"}
[trainers]
work_pool = "d-train"
hardware = {h100 = "d-train"}
[regions.eu-west]
work_pool = "d-west"
hardware = {l40s = "d-train"}
mirror = true
windows = ["mon-fri 18:00-08:00", "sat,sun 00:00-24:00"]
timezone = "Europe/Dublin"
[load_reports]
deployment = "operate/local"
"""
NAMES = {
    *(f"{flow}/local" for flow in ("experiment", "operate", "maintain", "dataflow_manager", "raas_pool", "trainer")),
    *("region_mirror/local", "region_window/local", "maintain/nightly", "experiment/tiny-add", "trainer/h100"),
    *("raas_pool/eu-west", "raas_pool/eu-west-l40s", "region_mirror/eu-west", "region_window/eu-west"),
}


@pytest.fixture(scope="module", autouse=True)
def afterwards_as_before(prefect_server: None) -> Iterator[None]:
    """Other tests of the session know the local deployments as the stack makes them, and no automation."""
    yield
    from infra.deployments import local_deployments

    for deployment in local_deployments():
        deployment.apply()


@pytest.fixture(autouse=True)
def nothing_is_there(prefect_server: None) -> Iterator[None]:
    """Each test begins without work pools, deployments and automations of these files."""
    yield

    async def clean() -> None:
        async with get_client() as client:
            for tag in ("deploy:office", "deploy:other"):
                await Applying(client, Installation(tag)).apply()
            for automation in await client.read_automations_by_name(automations.NAME):
                await client.delete_automation(automation.id)
            for pool in ("d-central", "d-train", "d-west"):
                with suppress(ObjectNotFound):
                    await client.delete_work_pool(pool)

    asyncio.run(clean())


def deployed(folder: Path, text: str = FILE, *, is_dry: bool = False) -> list[Change]:
    (folder / "deploy.toml").write_text(text)
    wanted = installation(read_deploy_file(folder / "deploy.toml"), folder)

    async def work() -> list[Change]:
        async with get_client() as client:
            return await Applying(client, wanted, is_dry=is_dry).apply()

    return asyncio.run(work())


def actions(changes: list[Change]) -> dict[str, str]:
    return {f"{change.kind} {change.name}": change.action for change in changes if change.action != "unchanged"}


def deployment(name: str) -> Any:
    with get_client(sync_client=True) as client:
        return client.read_deployment_by_name(name)


def automation(name: str) -> Automation:
    async def work() -> list[Automation]:
        async with get_client() as client:
            return await client.read_automations_by_name(name)

    (found,) = asyncio.run(work())
    return found


def test_all_of_it_and_the_second_time_nothing(tmp_path: Path) -> None:
    dry = deployed(tmp_path, is_dry=True)
    with get_client(sync_client=True) as client, pytest.raises(ObjectNotFound):
        client.read_work_pool("d-central")
    first = deployed(tmp_path)
    assert [(c.kind, c.name) for c in dry] == [(c.kind, c.name) for c in first]
    assert {c.name for c in first if c.kind == "deployment"} == NAMES
    assert known_deployments(sorted(NAMES)) == NAMES
    assert actions(deployed(tmp_path)) == {}
    assert actions(deployed(tmp_path, is_dry=True)) == {}

    pool = deployment("raas_pool/eu-west")
    assert (pool.work_pool_name, pool.work_queue_name) == ("d-west", "eu-west")
    assert pool.job_variables == {"env": {**COMMON_ENV, "AWS_REGION": "eu-central-1"}}
    assert {"astraflow", "deploy:office", "region:eu-west"} <= set(pool.tags)
    assert deployment("raas_pool/eu-west-l40s").work_pool_name == "d-train"
    assert deployment("trainer/local").work_pool_name == "d-train"
    assert deployment("experiment/tiny-add").parameters["config"]["store"] == "s3://runs/astraflow"
    hours = deployment("region_window/eu-west")
    assert {(each.schedule.cron, each.schedule.timezone) for each in hours.schedules} == {
        ("*/15 * * * *", "UTC"),
        ("0 18 * * mon,tue,wed,thu,fri", "Europe/Dublin"),
        ("0 8 * * tue,wed,thu,fri,sat", "Europe/Dublin"),
        ("0 0 * * sat,sun", "Europe/Dublin"),
        ("0 0 * * mon,sun", "Europe/Dublin"),
    }
    with get_client(sync_client=True) as client:
        west = client.read_work_pool("d-west")
    assert (west.type, west.concurrency_limit) == ("ecs", 6)
    assert west.base_job_template["variables"]["properties"]["image"]["default"] == "registry/astraflow:1"
    assert west.base_job_template["variables"]["required"] == []


def test_only_what_differs_is_written_and_what_a_person_paused_stays_so(tmp_path: Path) -> None:
    deployed(tmp_path)
    hours = deployment("region_window/eu-west")
    with get_client(sync_client=True) as client:
        client.pause_deployment(hours.id)
    paused = next(each for each in hours.schedules if each.slug == "begin-0")

    async def pause() -> None:
        async with get_client() as client:
            await client.update_deployment_schedule(hours.id, paused.id, active=False)

    asyncio.run(pause())
    assert actions(deployed(tmp_path)) == {}
    text = FILE.replace("mon-fri 18:00", "mon-fri 20:00").replace("limit = 6", "limit = 7")
    changed = deployed(tmp_path, text)
    assert actions(changed) == {"work pool d-west": "updated", "deployment region_window/eu-west": "updated"}
    assert {c.name: c.fields for c in changed if c.fields} == {
        "d-west": ("limit",),
        "region_window/eu-west": ("parameters", "schedules"),
    }
    after = deployment("region_window/eu-west")
    assert after.paused
    schedules = {each.slug: (each.schedule.cron, each.active) for each in after.schedules}
    assert schedules["begin-0"] == ("0 20 * * mon,tue,wed,thu,fri", False)
    assert schedules["end-0"][1]
    assert len(schedules) == len(after.schedules) == 5
    assert actions(deployed(tmp_path, text)) == {}


def test_what_the_file_no_longer_names_goes_and_others_stay(tmp_path: Path) -> None:
    deployed(tmp_path)
    others = FILE.replace('"office"', '"other"').replace("eu-west", "us-east")
    assert "removed" not in actions(deployed(tmp_path, others)).values()
    before, _, rest = FILE.partition("[regions.eu-west]")
    text = before + "[load_reports]\nloads = ['starved']\n" + "[maintenance]\ncron = ''\n"
    assert "Dublin" in rest
    changed = {name: action for name, action in actions(deployed(tmp_path, text)).items() if action == "removed"}
    assert set(changed) == {
        "deployment raas_pool/eu-west",
        "deployment raas_pool/eu-west-l40s",
        "deployment region_mirror/eu-west",
        "deployment region_window/eu-west",
        "automation deploy:office: load reports, run",
    }
    assert known_deployments(["raas_pool/us-east", "raas_pool/eu-west"]) == {"raas_pool/us-east"}
    # What both files name belongs to the one that was applied last.
    assert "deploy:office" in deployment("experiment/local").tags
    empty = 'name = "other"\nstore = "x"\nhome = "d-central"\n[work_pools.d-central]\n'
    assert "deployment raas_pool/us-east" in actions(deployed(tmp_path, empty))


def test_load_reports_run_a_deployment_with_what_they_say(tmp_path: Path) -> None:
    deployed(tmp_path)
    made = automation("deploy:office: load reports, run")
    assert isinstance(made.trigger, EventTrigger)
    assert made.trigger.expect == {"astraflow.load-report"}
    run = {"prefect.resource.id": "astraflow.run.math", "prefect.resource.name": "math", "astraflow.store": "s3://x"}
    for load, matches in (("starved", True), ("steady", False), ("ample", True)):
        assert made.trigger.match.matches(Resource.model_validate({**run, "astraflow.load": load})) is matches
    (action,) = made.actions
    assert isinstance(action, RunDeployment)
    assert action.deployment_id == deployment("operate/local").id
    assert set(action.parameters or {}) == {"run", "store", "report"}


def test_failures_are_told_through_a_block_that_is_there(tmp_path: Path) -> None:
    from prefect.blocks.notifications import SlackWebhook

    text = FILE + '[failures]\nblock = "slack-webhook/d-ops"\n'
    with pytest.raises(ConfigError, match="no block 'slack-webhook/d-ops'"):
        deployed(tmp_path, text)
    document = SlackWebhook(url="https://hooks.slack.com/services/T0AAAAAAA/B0AAAAAAA/abcdefghijklmnopqrstuvwx").save(
        "d-ops"
    )
    assert actions(deployed(tmp_path, text))["automation deploy:office: failures, notify"] == "created"
    (action,) = automation("deploy:office: failures, notify").actions
    assert isinstance(action, SendNotification)
    assert action.block_document_id == document
    assert actions(deployed(tmp_path, text)) == {}


def test_a_work_pool_of_another_kind_and_variables_that_jobs_do_not_have(tmp_path: Path) -> None:
    deployed(tmp_path)
    other = FILE.replace(
        'kind = "kubernetes"\nvariables = {image = "registry/astraflow:1", resources = {"nvidia.com/gpu" = 8}}', ""
    )
    with pytest.raises(ConfigError, match=r"d-train.*of the kind kubernetes, the file says process"):
        deployed(tmp_path, other)
    with pytest.raises(ConfigError, match="no variable 'gpu'"):
        deployed(tmp_path, FILE.replace("resources", "gpu"))


def test_the_command_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL
    from typer.testing import CliRunner

    from infra.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value() or "")
    (tmp_path / "deploy.toml").write_text(FILE)
    dry = CliRunner().invoke(app, ["deploy", "--dry-run", "--json"])
    assert dry.exception is None, dry.exception
    said = json.loads(dry.stdout)
    assert (said["dry_run"], said["changed"]) == (True, len(said["changes"]))
    assert "prefect worker start --pool d-west --work-queue eu-west" in said["workers"]
    lines = CliRunner().invoke(app, ["deploy"]).output.splitlines()
    assert "work pool d-train: created" in lines
    again = CliRunner().invoke(app, ["deploy"]).output.splitlines()
    assert again[0] == f"unchanged: all {len(said['changes'])} things are as the file says"
    (tmp_path / "deploy.toml").write_text(FILE.replace("Dublin", "Nowhere"))
    result = CliRunner().invoke(app, ["deploy"])
    assert "'Europe/Nowhere' is not a time zone" in str(result.exception)
    assert automations.NAME in {change["name"] for change in said["changes"]}

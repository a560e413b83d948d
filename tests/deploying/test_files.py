"""Image, compose file, manifests and job templates, held to the schemas of whoever reads them. No engine runs here."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from botocore.session import Session
from botocore.validate import ParamValidator
from compose_spec import PyCompose
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect_aws.workers.ecs_worker import ECSJobConfiguration, ECSWorker
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from infra.deploy_file import read_deploy_file

INFRA = Path(__file__).parents[2] / "infra"
COMPOSE = INFRA / "compose" / "compose.yaml"
CLIENT = PrefectClient("http://127.0.0.1:9/api")  # asked for nothing: the templates name no block
VERSIONS = ("1.29", "1.33")


def flow_run() -> FlowRun:
    return FlowRun(id=uuid.uuid4(), flow_id=uuid.uuid4(), name="math/pool/west", labels={})


def template(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((INFRA / "job_templates" / f"{kind}.json").read_text())
    return found


def test_the_image_s_file_has_no_finding() -> None:
    binary = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert binary is not None
    for text, code in (((INFRA / "images" / "Dockerfile").read_text(), 0), ("FROM python\nRUN cd /x && sudo y\n", 1)):
        done = subprocess.run([binary, "--no-color", "-"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout


# --- the compose file -----------------------------------------------------------------------------


def filled(value: Any, values: dict[str, str]) -> Any:
    """As compose fills variables into what it has parsed; one that must be set and is not is an error."""

    def found(match: re.Match[str]) -> str:
        name, operator, rest = match.groups()
        if values.get(name):
            return values[name]
        assert operator == ":-", f"{name} must be set"
        return str(rest)

    if isinstance(value, dict):
        return {name: filled(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, values) for each in value]
    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", found, value) if isinstance(value, str) else value


def compose_file(values: dict[str, str]) -> dict[str, Any]:
    parsed: dict[str, Any] = filled(yaml.safe_load(COMPOSE.read_text()), values)
    return parsed


def example() -> dict[str, str]:
    lines = (INFRA / "compose" / "example.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_compose_file_is_one() -> None:
    values = {name: value or "secret" for name, value in example().items()}
    compose = PyCompose.from_yaml(yaml.safe_dump(compose_file(values)))
    for check in ("validate_networks", "validate_secrets", "validate_volumes"):
        getattr(compose, check)()
    assert set(compose.service_names()) == {"postgres", "prefect", "s3", "deploy", "worker"}
    with pytest.raises(ValueError):
        PyCompose.from_yaml("services: {a: {image: x, ports: {x: 1}}}")


def test_every_secret_must_be_given_and_none_stands_in_the_file() -> None:
    text = COMPOSE.read_text()
    for name in re.findall(r"\$\{(\w+):\?", text):
        with pytest.raises(AssertionError, match=f"{name} must be set"):
            compose_file({other: "x" for other in example() if other != name})
        assert name in example()
    services = compose_file(dict.fromkeys(example(), "secret"))["services"]
    assert services["prefect"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == "secret"
    assert services["prefect"]["environment"]["PREFECT_SERVER_DATABASE_CONNECTION_URL"].startswith(
        "postgresql+asyncpg://"
    )
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))
    for name, service in services.items():  # whoever is waited for can say that it is ready
        for other, condition in service.get("depends_on", {}).items():
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[other], (name, other)


def test_what_it_deploys_can_be_started_by_its_worker() -> None:
    file = read_deploy_file(INFRA / "compose" / "deploy.toml")
    command = yaml.safe_load(COMPOSE.read_text())["services"]["worker"]["command"]
    assert command[command.index("--pool") + 1] == file.home


# --- kubernetes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_worker_s_manifests(version: str) -> None:
    found = list(yaml.safe_load_all((INFRA / "kubernetes" / "worker.yaml").read_text()))
    assert [each["kind"] for each in found][-1] == "Deployment"
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kubernetes_job_as_the_worker_makes_it(version: str) -> None:
    values = {
        "image": "registry/astraflow:1",
        "resources": {"cpu": "4", "nvidia.com/gpu": 1},
        "node_selector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "env": {"AWS_REGION": "eu-west-1"},
    }
    job = asyncio.run(
        KubernetesWorkerJobConfiguration.from_template_and_values(template("kubernetes"), values, client=CLIENT)
    )
    job.prepare_for_flow_run(flow_run())
    manifest = job.job_manifest
    pod = manifest["spec"]["template"]["spec"]
    for misplaced in ("completions", "parallelism"):  # Prefect asks for them here, where Kubernetes passes them over
        del pod[misplaced]
    kubernetes_validate.validate(manifest, version, strict=True)
    (container,) = pod["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["AWS_REGION"] == "eu-west-1"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert (manifest["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")  # the supervisor restarts
    assert pod["terminationGracePeriodSeconds"] >= 60 and pod["nodeSelector"] == {"gpu": "h100"}


# --- ECS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "more"),
    [
        ("FARGATE", {}),
        ("EC2", {"compatibilities": ["EC2"], "resource_requirements": [{"type": "GPU", "value": "1"}]}),
    ],
)
def test_an_ecs_task_as_the_worker_makes_it(launch: str, more: dict[str, Any]) -> None:
    arn = "arn:aws:iam::123456789012:role"
    values = {
        "image": "registry/astraflow:1",
        "execution_role_arn": f"{arn}/execute",
        "task_role_arn": f"{arn}/run",
        "launch_type": launch,
        "network_configuration": {"awsvpcConfiguration": {"subnets": ["subnet-1"], "securityGroups": ["sg-1"]}},
        "vpc_id": "vpc-1",
        "secrets": [{"name": "HF_TOKEN", "valueFrom": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hf"}],
        "env": {"AWS_REGION": "eu-west-1"},
        **more,
    }
    job = asyncio.run(ECSJobConfiguration.from_template_and_values(template("ecs"), values, client=CLIENT))
    run = flow_run()
    job.prepare_for_flow_run(run)
    worker = ECSWorker.__new__(ECSWorker)
    worker._work_pool_name = "west"
    worker._logger = logging.getLogger("ecs")
    definition = worker._prepare_task_definition(job, region="eu-west-1", flow_run=run)
    checked(definition, "RegisterTaskDefinition")
    assert definition["networkMode"] == "awsvpc"
    assert definition["containerDefinitions"][0]["stopTimeout"] == 60
    assert "logConfiguration" in definition["containerDefinitions"][0]


def checked(request: dict[str, Any], operation: str) -> None:
    """Whether AWS's own description of the call takes it."""
    shape = Session().get_service_model("ecs").operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()

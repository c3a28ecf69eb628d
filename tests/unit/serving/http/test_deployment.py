"""The deployment examples match the command: arguments, probes, mounts, and time to drain."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from embedkit.cli import serve as command
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.server import all_routes
from embedkit.serving.http.settings import ServerSettings

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[4] / "examples" / "deploy"
DRAIN_S = ServerSettings().drain_delay_s + ServerSettings().drain_s


def parse(arguments):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def paths(toy_encoder):
    service = Service(ServerSettings(), lambda: LoadedModels([toy_encoder]))
    yield {route.path for route in all_routes(service)}
    service.close()


def test_the_compose_file_starts_a_server_that_can_drain():
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["embedkit"]
    arguments = parse(service["command"])
    assert arguments.host == "0.0.0.0"
    assert Path(arguments.api_key_file).name in service["secrets"]
    mounted = {volume.split(":")[1] for volume in service["volumes"]}
    assert {*arguments.models, arguments.collection} == mounted
    assert float(service["stop_grace_period"].removesuffix("s")) > DRAIN_S


def test_the_kubernetes_example_starts_a_server_that_can_drain(paths):
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = parse(container["args"])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(Path(arguments.config).parent), str(Path(arguments.api_key_file).parent)} <= mounted
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert set(probes) <= paths
    assert container["ports"][0]["containerPort"] == ServerSettings().port
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert pod["terminationGracePeriodSeconds"] > DRAIN_S

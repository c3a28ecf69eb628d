"""Settings: validated on start, all problems at once; the deployment examples match the command."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import pytest

from embedkit.cli import serve as command
from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.server import all_routes
from embedkit.serving.http.settings import ServerSettings
from embedkit.threads import most_processes


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"port": 70_000}, "port is at most 65535"),
        ({"prot": 1}, "did you mean 'port'"),
        ({"tls_key": "key.pem"}, "belong together"),
        ({"root_path": "embeddings"}, "starts with a slash"),
        ({"cors_origins": ["app.example.com"]}, "cors_origins: expected https://HOST"),
        ({"hosts": ["app.example.com:8080"]}, "hosts: expected names without port"),
        ({"hosts": ["box", "*.example.com"]}, "hosts: expected names without port"),
        ({"on_overflow": "drop"}, "on_overflow is one of truncate, error"),
    ],
)
def test_invalid_values_are_refused(mapping, words):
    with pytest.raises(ConfigError, match=words):
        from_mapping(ServerSettings, mapping)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("box", False),
    ],
)
def test_only_a_loopback_address_is_local(host, local):
    settings = ServerSettings(host=host)
    assert settings.is_local is local
    assert (settings.allowed_hosts is not None) is local


def test_every_setting_is_in_the_documentation_with_its_default():
    text = (Path(__file__).parents[4] / "docs" / "server.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(ServerSettings):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        shown = "" if default is None else f"`{json.dumps(default)}` "
        assert f"| `{field.name}` | {shown}|" in text


def test_the_number_of_workers_has_a_bound():
    most = most_processes()
    assert ServerSettings(workers=most).workers == most
    with pytest.raises(ConfigError, match=f"workers is at most {most} here"):
        ServerSettings(workers=most + 1)


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

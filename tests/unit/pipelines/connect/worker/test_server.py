"""The HTTP server of a worker, and the pipeline files that it takes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from moldau.errors import ConfigError
from moldau.pipelines.worker.config import WorkerConfig
from moldau.pipelines.worker.pipeline_files import check_file
from moldau.pipelines.worker.server import RestServer
from tests.integration.waiting import eventually
from tests.unit.pipelines.connect.worker.memory import memory_herder

LOCAL = {"listeners": "http://127.0.0.1:0"}
COPY = "sources: {a: {connector: topic, topic: a}}\nsinks: {b: {connector: topic, topic: b, format: bytes}}\n"


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code in (200, 401)
    except httpx.HTTPError:
        return False


def test_it_answers_at_its_url_and_a_second_one_on_the_port_is_refused(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("# who may\nada:secret\n\n")
    server = RestServer(WorkerConfig(LOCAL | {"rest.basic.auth.file": "users"}, tmp_path), memory_herder()[0])
    server.start()
    try:
        eventually(lambda: answers(server.url), "it answers")
        assert httpx.get(f"{server.url}/connectors").status_code == 401
        assert httpx.get(f"{server.url}/connectors", auth=("ada", "secret")).json() == []
        with pytest.raises(ConfigError, match="cannot listen"):
            RestServer(WorkerConfig({"listeners": server.url}, tmp_path), memory_herder()[0])
    finally:
        server.stop()


@pytest.mark.parametrize("text", ["", "ada\n", ":secret\n", "# nobody\n"])
def test_a_file_without_users_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(text)
    with pytest.raises(ConfigError, match="user:password"):
        RestServer(WorkerConfig(LOCAL | {"rest.basic.auth.file": "users"}, tmp_path), memory_herder()[0])


def test_an_https_listener_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location"):
        RestServer(WorkerConfig({"listeners": "https://127.0.0.1:0"}, tmp_path), memory_herder()[0])


def test_a_pipeline_file_of_a_request_is_checked_as_lint_does() -> None:
    check_file("copy", COPY)
    with pytest.raises(ConfigError, match="topc"):
        check_file("copy", COPY.replace("topic: b", "topc: b"))
    with pytest.raises(ConfigError, match="no sinks"):
        check_file("copy", COPY.partition("sinks")[0])
    with pytest.raises(ConfigError, match="not YAML"):
        check_file("copy", "{")


@pytest.mark.parametrize(
    "part",
    [
        "steps: {c: {python: os:getcwd}}",
        "steps: {c: {sql: SELECT 1, python: os:getcwd}}",
        "sources: {a: {connector: 'antigravity:Connector'}}",
        "sinks: {b: {connector: python, function: antigravity:fly}}",
        "sinks: [{connector: 'antigravity:Connector'}]",
    ],
)
def test_a_request_loads_no_code(part: str) -> None:
    import sys

    with pytest.raises(ConfigError, match="no code"):
        check_file("copy", part)
    assert "antigravity" not in sys.modules

"""Kafka Connect's REST interface: statuses, bodies and errors as its clients expect them (ConnectorsResourceTest)."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import httpx
import pytest

from moldau.pipelines.worker import records
from moldau.pipelines.worker.records import Status, Target
from moldau.pipelines.worker.rest import BODY_BYTES_MAX, ROUTES, application
from tests.unit.pipelines.connect.worker.memory import MemoryTopics, memory_herder

CONFIG = {"connector.class": "FileStreamSource", "file": "${file:secrets:path}", "tasks.max": "1", "ü": ' "quoted" '}
SINK = {"connector.class": "FileStreamSink", "topics": "t"}


def ask(app: Any, method: str, path: str, **more: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            return await client.request(method, path, **more)

    return asyncio.run(asked())


class Rest:
    def __init__(self) -> None:
        self.herder, self.topics, self.runner = memory_herder()
        self.app = application(self.herder)

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None:
            more["json"] = body
        return ask(self.app, method, path, **more)

    def create(self, name: str = "lines", config: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        return self("POST", "/connectors", {"name": name, "config": config or CONFIG, **more})


@pytest.fixture
def rest() -> Rest:
    return Rest()


def error(answer: httpx.Response, status: int) -> str:
    """The message of an error with this status."""
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error_code", "message"}
    assert answer.json()["error_code"] == status
    return str(answer.json()["message"])


def test_a_connector_is_created_and_its_configuration_comes_back_unchanged(rest: Rest) -> None:
    created = rest.create()
    expected = {"name": "lines", "config": CONFIG | {"name": "lines"}, "tasks": [], "type": "source"}
    assert (created.status_code, created.headers["location"]) == (201, "/connectors/lines")
    assert created.json() == expected
    assert rest("GET", "/connectors/lines").json() == expected
    assert list(rest("GET", "/connectors/lines/config").json()) == [*CONFIG, "name"]
    assert rest("GET", "/connectors").json() == ["lines"]


def test_a_name_is_trimmed_and_may_have_characters_of_urls(rest: Rest) -> None:
    assert rest.create("  my lines?%  ").headers["location"] == "/connectors/my%20lines%3F%25"
    assert rest("GET", "/connectors/my%20lines%3F%25").json()["name"] == "my lines?%"


@pytest.mark.parametrize("name", ["", "  ", "a/b", "..", "tab\there", "x" * 201])
def test_a_name_that_is_none_is_refused(rest: Rest, name: str) -> None:
    assert "name" in error(rest.create(name), 400)


def test_a_second_connector_of_a_name_is_a_conflict(rest: Rest) -> None:
    rest.create()
    assert error(rest.create(), 409) == "Connector lines already exists"


@pytest.mark.parametrize(
    ("given", "target"), [("RUNNING", Target.STARTED), ("paused", Target.PAUSED), ("STOPPED", Target.STOPPED)]
)
def test_a_connector_can_be_created_at_rest(rest: Rest, given: str, target: Target) -> None:
    assert rest.create(initial_state=given).status_code == 201
    assert rest.topics.state.target("lines") is target


def test_a_name_in_the_configuration_must_be_the_connectors(rest: Rest) -> None:
    assert "doesn't match" in error(rest.create(config=CONFIG | {"name": "other"}), 400)
    assert "doesn't match" in error(rest("PUT", "/connectors/lines/config", {"name": "other"}), 400)


def test_an_invalid_configuration_lists_what_is_wrong(rest: Rest) -> None:
    message = error(rest.create(config={"file": "x"}), 400)
    assert "contains the following 1 error(s):\nconnector.class is missing\n" in message
    assert rest("GET", "/connectors").json() == []


def test_put_config_creates_and_changes(rest: Rest) -> None:
    first = rest("PUT", "/connectors/lines/config", CONFIG)
    assert (first.status_code, first.headers["location"]) == (201, "/connectors/lines")
    second = rest("PUT", "/connectors/lines/config", CONFIG | {"file": "y"})
    assert (second.status_code, second.json()["config"]["file"]) == (200, "y")


def test_patch_changes_keys_and_null_removes_them(rest: Rest) -> None:
    rest.create()
    patched = rest("PATCH", "/connectors/lines/config", {"file": "z", "tasks.max": None})
    assert patched.status_code == 200
    assert patched.json()["config"] == {k: v for k, v in CONFIG.items() if k != "tasks.max"} | {
        "name": "lines",
        "file": "z",
    }
    error(rest("PATCH", "/connectors/none/config", {"file": "z"}), 404)


def test_numbers_and_truth_values_of_a_configuration_are_texts(rest: Rest) -> None:
    body = '{"name": "lines", "config": {"connector.class": "FileStreamSource", "n": 1.50, "on": true}}'
    created = rest("POST", "/connectors", content=body, headers={"Content-Type": "application/json"})
    assert created.json()["config"] == {
        "connector.class": "FileStreamSource",
        "n": "1.50",
        "on": "true",
        "name": "lines",
    }


@pytest.mark.parametrize(
    ("method", "path", "status", "target"),
    [
        ("PUT", "pause", 202, Target.PAUSED),
        ("PUT", "stop", 204, Target.STOPPED),
        ("PUT", "resume", 202, Target.STARTED),
    ],
)
def test_pause_stop_and_resume(rest: Rest, method: str, path: str, status: int, target: Target) -> None:
    rest.create(initial_state="PAUSED")
    answer = rest(method, f"/connectors/lines/{path}")
    assert (answer.status_code, answer.content) == (status, b"")
    assert rest.topics.state.targets["lines"] is target
    assert "not found" in error(rest(method, f"/connectors/none/{path}"), 404)


def test_restart_answers_with_the_status_only_if_asked_for_tasks_or_failures(rest: Rest) -> None:
    rest.create()
    assert rest("POST", "/connectors/lines/restart").status_code == 204
    answer = rest("POST", "/connectors/lines/restart?includeTasks=true&onlyFailed=true")
    assert (answer.status_code, answer.json()["name"]) == (202, "lines")
    assert rest.runner.restarts == [("lines", False), ("lines", True)]
    error(rest("POST", "/connectors/none/restart"), 404)


def test_status_and_tasks(rest: Rest) -> None:
    rest.create()
    rest.topics.write(
        [
            *records.task_records("lines", [{"query": "out"}]),
            records.status_record("lines", Status("RUNNING", "h:8083")),
            records.status_record("lines", Status("FAILED", "h:8083", "it broke"), 0),
        ]
    )
    task = {"id": 0, "state": "FAILED", "worker_id": "h:8083", "trace": "it broke"}
    status = rest("GET", "/connectors/lines/status").json()
    assert status == {
        "name": "lines",
        "connector": {"state": "RUNNING", "worker_id": "h:8083"},
        "tasks": [task],
        "type": "source",
    }
    assert rest("GET", "/connectors/lines/tasks").json() == [
        {"id": {"connector": "lines", "task": 0}, "config": {"query": "out"}}
    ]
    assert rest("GET", "/connectors/lines").json()["tasks"] == [{"connector": "lines", "task": 0}]
    assert rest("GET", "/connectors/lines/tasks/0/status").json() == task
    assert rest("POST", "/connectors/lines/tasks/0/restart").status_code == 204
    error(rest("GET", "/connectors/lines/tasks/1/status"), 404)
    error(rest("POST", "/connectors/lines/tasks/1/restart"), 404)
    error(rest("GET", "/connectors/lines/tasks/one/status"), 404)
    expanded = rest("GET", "/connectors?expand=status&expand=info&expand=unknown").json()
    assert expanded == {"lines": {"status": status, "info": rest("GET", "/connectors/lines").json()}}


def test_a_deleted_connector_is_gone(rest: Rest) -> None:
    rest.create()
    assert rest("DELETE", "/connectors/lines").status_code == 204
    assert "lines not found" in error(rest("DELETE", "/connectors/lines"), 404)
    error(rest("GET", "/connectors/lines"), 404)
    error(rest("GET", "/connectors/lines/status"), 404)


def test_topics_are_listed_and_forgotten(rest: Rest) -> None:
    rest.create()
    rest.topics.write([records.topic_record("lines", "out", 1)])
    assert rest("GET", "/connectors/lines/topics").json() == {"lines": {"topics": ["out"]}}
    assert rest("PUT", "/connectors/lines/topics/reset").status_code == 202
    assert rest("GET", "/connectors/lines/topics").json() == {"lines": {"topics": []}}


ALTER = {"offsets": [{"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": 4}}]}


def test_offsets_of_a_stopped_connector_can_be_changed(rest: Rest) -> None:
    rest.create("sink", SINK, initial_state="STOPPED")
    assert "altered" in rest("PATCH", "/connectors/sink/offsets", ALTER).json()["message"]
    assert rest("GET", "/connectors/sink/offsets").json() == ALTER
    assert rest.runner.forgotten == ["sink"]
    assert "reset" in rest("DELETE", "/connectors/sink/offsets").json()["message"]
    assert rest("GET", "/connectors/sink/offsets").json() == {"offsets": []}


def test_offsets_stay_while_a_connector_may_run(rest: Rest) -> None:
    rest.create("sink", SINK)
    assert "STOPPED state" in error(rest("PATCH", "/connectors/sink/offsets", ALTER), 400)
    assert "STOPPED state" in error(rest("DELETE", "/connectors/sink/offsets"), 400)
    rest("PUT", "/connectors/sink/stop")
    rest.runner.is_busy = True
    assert "still ending" in error(rest("DELETE", "/connectors/sink/offsets"), 409)
    assert "need to be provided" in error(rest("PATCH", "/connectors/sink/offsets", {"offsets": []}), 400)
    assert not rest.runner.forgotten


def test_the_root_tells_kafkas_version_and_the_cluster(rest: Rest) -> None:
    root = rest("GET", "/").json()
    assert root["version"].startswith("4.")
    assert (root["kafka_cluster_id"], set(root)) == ("a-cluster", {"version", "commit", "kafka_cluster_id"})


def test_a_worker_is_healthy_once_it_has_started(rest: Rest) -> None:
    assert rest("GET", "/health").json()["status"] == "healthy"
    rest.herder.is_ready = False
    answer = rest("GET", "/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "starting")


def test_log_levels_can_be_read_and_set(rest: Rest) -> None:
    name = "moldau.pipelines.worker.rest"
    assert rest("PUT", f"/admin/loggers/{name}", {"level": "debug"}).json() == [name]
    assert rest("GET", f"/admin/loggers/{name}").json()["level"] == "DEBUG"
    assert name in rest("GET", "/admin/loggers").json()
    rest("PUT", f"/admin/loggers/{name}", {"level": "WARN"})
    assert "'level'" in error(rest("PUT", f"/admin/loggers/{name}", {}), 400)
    assert "LOUD" in error(rest("PUT", f"/admin/loggers/{name}", {"level": "LOUD"}), 404)
    error(rest("GET", "/admin/loggers/no.such.logger"), 404)


def test_plugins_are_those_of_the_door(rest: Rest) -> None:
    found = rest("GET", "/connector-plugins").json()
    assert {each["type"] for each in found} == {"source", "sink"}
    assert all(set(each) == {"class", "type", "version"} for each in found)
    assert "converter" in {each["type"] for each in rest("GET", "/connector-plugins?connectorsOnly=false").json()}
    keys = rest("GET", "/connector-plugins/FileStreamSource/config").json()
    assert "file" in {key["name"] for key in keys}
    error(rest("GET", "/connector-plugins/NoSuchThing/config"), 404)
    wrong = rest("PUT", "/connector-plugins/FileStreamSink/config/validate", CONFIG)
    assert "does not match" in error(wrong, 400)
    assert "configs" in rest("PUT", "/connector-plugins/FileStreamSource/config/validate", CONFIG).json()


@pytest.mark.parametrize(
    "body",
    ["", "no json", "[]", "null", "1", '{"name": "a"}', '{"name": 1, "config": {}}', '{"name": "a", "config": []}',
     '{"name": "a", "config": {"connector.class": ["x"]}}', '{"name": "a", "config": {"connector.class": null}}',
     '{"name": "a", "config": {"connector.class": "x"}, "initial_state": "DANCING"}',
     '{"name": "a", "config": {}, "what": 1}', "[" * 100_000, "\udcff".encode("utf-8", "surrogateescape")],
)  # fmt: skip
def test_a_wrong_body_is_refused_and_nothing_is_stored(rest: Rest, body: str | bytes) -> None:
    answer = rest("POST", "/connectors", content=body, headers={"Content-Type": "application/json"})
    error(answer, 400)
    assert not rest.topics.written


def test_every_path_with_a_body_survives_a_wrong_one(rest: Rest) -> None:
    rest.create("sink", SINK, initial_state="STOPPED")
    for path, method, _, _ in ROUTES:
        for body in ("", "no json", "[]", '{"a": {}}', "3"):
            url = path.format(name="sink", task="0")
            if method in ("POST", "PUT", "PATCH"):
                answer = rest(method, url, content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code < 500, (method, url, body, answer.text)


def test_a_body_has_a_size_and_a_type(rest: Rest) -> None:
    huge = json.dumps({"name": "x" * BODY_BYTES_MAX, "config": {}})
    error(rest("POST", "/connectors", content=huge, headers={"Content-Type": "application/json"}), 413)
    error(rest("POST", "/connectors", content="{}", headers={"Content-Type": "text/plain"}), 415)


def test_unknown_paths_and_methods_are_answered_in_json(rest: Rest) -> None:
    error(rest("GET", "/nowhere"), 404)
    error(rest("GET", "/connectors/a/b/c/d"), 404)
    error(rest("DELETE", "/connectors"), 405)


def test_what_goes_wrong_inside_is_not_shown(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(MemoryTopics, "write", fail)
    assert "secret" not in error(rest.create(), 500)


def test_pipelines_have_paths_of_their_own(rest: Rest) -> None:
    file = "sinks: {}"
    assert rest("POST", "/pipelines", {"name": "copy", "file": file}).status_code == 201
    assert rest("POST", "/pipelines", {"name": "copy", "file": file}).status_code == 200
    assert "no sinks" in error(rest("POST", "/pipelines", {"name": "copy", "file": "x"}), 400)
    assert rest("GET", "/pipelines").json() == ["copy"]
    assert rest("GET", "/connectors").json() == []
    assert rest("GET", "/pipelines/copy").json()["type"] == "pipeline"
    assert rest("GET", "/pipelines/copy/logs").json() == {"lines": ["copy started"]}
    assert error(rest.create("copy"), 409)
    assert rest("PUT", "/pipelines/copy/stop").status_code == 204
    assert rest("DELETE", "/pipelines/copy").status_code == 204
    error(rest("GET", "/pipelines/copy"), 404)


def test_a_standby_reads_and_does_not_write_by_itself(rest: Rest) -> None:
    rest.create()
    rest.herder.runner = None
    assert rest("GET", "/connectors").json() == ["lines"]
    assert "no active worker" in error(rest.create("more"), 409)
    rest.topics.write([records.active_record("http://127.0.0.1:1")])
    assert "cannot be reached" in error(rest.create("more"), 409)
    assert "no active worker" in error(rest("POST", "/connectors?forward=false", {}), 409)


def test_everybody_needs_a_password_if_there_are_some() -> None:
    herder, _, _ = memory_herder()
    get = partial(ask, application(herder, {"ada": "pa:ss"}), "GET", "/connectors")
    error(get(), 401)
    error(get(auth=("ada", "wrong")), 401)
    error(get(auth=("bob", "")), 401)
    error(get(headers={"Authorization": "Basic ???"}), 401)
    assert get(auth=("ada", "pa:ss")).status_code == 200

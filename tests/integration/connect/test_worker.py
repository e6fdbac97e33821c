"""Workers as processes, as a user starts them: connectors by REST, and a standby that takes over after kill -9."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from moldau import Broker
from soak.broker_process import command, free_port
from soak.pipeline_process import environment, kill_run
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.processes import pipeline_command, produce_json, read_topic
from tests.integration.waiting import eventually

START_S = 120.0  # Spark's start, on a busy machine
COPY = """
sources:
  numbers: {connector: topic, topic: %s, format: json, schema: n INT}
sinks:
  out: {connector: topic, topic: %s}
"""


class WorkerProcess:
    """`with WorkerProcess(folder, bootstrap) as worker:` starts one; workers of one folder are of one group."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / f"worker-{self.url.rpartition(':')[2]}.log"
        group = folder.name
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **{f"{which}.storage.topic": f"{group}-{which}" for which in ("config", "offset", "status")},
            "offset.storage.partitions": "2",
            "listeners": self.url,
        }
        self._file = self.log.with_suffix(".properties")
        self._file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [command("connect-distributed"), str(self._file)],
                cwd=self._folder,
                env=environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9 of all of it, as when the machine goes."""
        if self._process is not None:
            process, self._process = self._process, None
            kill_run(process)

    def stop(self) -> int:
        """As SIGTERM does; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, f"{self.url}{path}", json=body, timeout=30)

    def json(self, path: str) -> Any:
        answer = self.ask("GET", path)
        return answer.json() if answer.is_success else None

    def until(self, is_so: Any, what: str, within_s: float = START_S) -> None:
        def checked() -> object:
            assert self._process is not None
            assert self._process.poll() is None, f"ended before: {what}\n{self.log.read_text()}"
            try:
                return is_so()
            except httpx.HTTPError:
                return False

        try:
            eventually(checked, what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-4000:]}") from None

    def until_state(self, connector: str, state: str, tasks: list[str] | None = None) -> None:
        """Of the connector, and of each of its tasks."""
        wanted = [state] if tasks is None else tasks

        def is_so() -> bool:
            status = self.json(f"/connectors/{connector}/status")
            states = status and [task["state"] for task in status["tasks"]]
            return bool(status) and (status["connector"]["state"], states) == (state, wanted)

        self.until(is_so, f"{connector} is {state}, its tasks {wanted}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def worker(folder: Path, kafka_broker: Broker) -> Iterator[WorkerProcess]:
    """The first one of the group: the active one, until the last test kills it."""
    with WorkerProcess(folder, kafka_broker.bootstrap_servers) as process:
        process.until(lambda: process.ask("GET", "/health").is_success, "it is active")
        yield process


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(bootstrap, topic)]


def test_a_connector_lives_as_the_rest_interface_says(
    worker: WorkerProcess, folder: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    file, topic = folder / "lines.txt", new_topic(1)
    file.write_text("one\ntwo\n")
    config = {"connector.class": "FileStreamSource", "file": str(file), "topic": topic, "tasks.max": "1"}

    created = worker.ask("POST", "/connectors", {"name": "lines", "config": config})
    assert (created.status_code, created.json()["config"]) == (201, config | {"name": "lines"})
    worker.until(lambda: values(bootstrap, topic) == [b"one", b"two"], "the lines are in the topic")
    worker.until_state("lines", "RUNNING")
    assert worker.json("/connectors/lines/topics") == {"lines": {"topics": [topic]}}

    assert worker.ask("PUT", "/connectors/lines/pause").status_code == 202
    worker.until_state("lines", "PAUSED")
    with file.open("a") as more:
        more.write("three\n")
    assert worker.ask("PUT", "/connectors/lines/resume").status_code == 202
    worker.until(lambda: values(bootstrap, topic) == [b"one", b"two", b"three"], "it went on where it was")

    assert worker.ask("DELETE", "/connectors/lines/offsets").status_code == 400
    assert worker.ask("PUT", "/connectors/lines/stop").status_code == 204
    worker.until_state("lines", "STOPPED", [])
    worker.until(lambda: worker.ask("DELETE", "/connectors/lines/offsets").is_success, "its offsets can be reset")
    assert worker.json("/connectors/lines/offsets") == {"offsets": []}
    assert worker.ask("PUT", "/connectors/lines/resume").status_code == 202
    worker.until(lambda: len(values(bootstrap, topic)) == 6, "it has started over")

    assert worker.ask("DELETE", "/connectors/lines").status_code == 204
    assert worker.json("/connectors") == []


def test_an_unknown_class_is_refused_with_the_nearest(worker: WorkerProcess) -> None:
    refused = worker.ask("PUT", "/connectors/x/config", {"connector.class": "FileStreamSorce", "topic": "t"})
    assert refused.status_code == 400
    assert "FileStreamSource" in refused.json()["message"]


def test_a_pipeline_file_runs_in_a_worker(
    worker: WorkerProcess, folder: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    numbers, out = new_topic(1), new_topic(1)
    (folder / "copy.yaml").write_text(COPY % (numbers, out))
    produce_json(bootstrap, numbers, [{"n": 1}])
    submitted = pipeline_command(folder, "submit", "copy.yaml", "--worker", worker.url)
    assert submitted.stdout == "submitted copy\n", submitted.stderr
    worker.until(lambda: values(bootstrap, out) == [b'{"n":1}'], "the record is copied")
    assert "copy" in pipeline_command(folder, "list", "--worker", worker.url).stdout
    assert "RUNNING" in pipeline_command(folder, "logs", "copy", "--worker", worker.url).stdout
    assert pipeline_command(folder, "stop", "copy", "--worker", worker.url).returncode == 0
    assert worker.json("/pipelines") == []


def test_a_standby_takes_over_after_kill_minus_nine_with_nothing_lost_or_doubled(
    worker: WorkerProcess, folder: Path, bootstrap: str, new_topic: NewTopic
) -> None:
    file, topic = folder / "many.txt", new_topic(1)
    file.write_text("".join(f"{n}\n" for n in range(1000)))
    config = {"connector.class": "FileStreamSource", "file": str(file), "topic": topic}
    with WorkerProcess(folder, bootstrap) as standby:
        standby.until(lambda: standby.ask("GET", "/health").is_success, "it is ready")
        # A standby forwards what it may not do itself.
        assert standby.ask("POST", "/connectors", {"name": "many", "config": config}).status_code == 201
        worker.until_state("many", "RUNNING")
        worker.until(lambda: len(values(bootstrap, topic)) > 0, "it writes")
        with file.open("a") as more:
            more.write("".join(f"{n}\n" for n in range(1000, 3000)))
        worker.kill()
        with file.open("a") as more:
            more.write("".join(f"{n}\n" for n in range(3000, 4000)))
        wanted = [b"%d" % n for n in range(4000)]
        standby.until(lambda: len(values(bootstrap, topic)) >= len(wanted), "the standby went on")
        assert values(bootstrap, topic) == wanted
        standby.until_state("many", "RUNNING")
        assert standby.json("/connectors/many/status")["connector"]["worker_id"] in standby.url
        assert standby.stop() == 0

"""What references stand for is printed, logged and stored nowhere, by a pipeline that runs, fails and runs again."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from soak.broker_process import BrokerProcess, free_port
from tests.integration.conftest import make_topic
from tests.integration.pipelines.processes import PipelineProcess, pipeline_command, produce_json, read_topic
from tests.integration.spark.topics import produce

PIPELINE = """
sources:
  numbers: {connector: topic, topic: "${env:IN}", format: json, schema: n INT}
steps:
  tenths: {sql: "SELECT n, 10 DIV n AS tenth FROM numbers"}
sinks:
  out: {connector: topic, topic: "${file:secrets.properties:out}", key: "${env:KEY}"}
  files: {connector: directory, path: "${env:FOLDER}", format: json}
expect:
  small: {view: numbers, condition: n < 90, action: dead-letter}
settings:
  dead letters: ${env:DEAD}
  checkpoint: ${env:CHECKPOINT}
  kafka.bootstrap.servers: ${env:SERVERS}
"""
SECRETS = {
    "IN": "topic-nobody-may-know",
    "OUT": "another-topic-nobody-may-know",
    "DEAD": "grave-nobody-may-know",
    "KEY": "concat('key nobody may know ', n)",
    "FOLDER": "folder-nobody-may-know",
    "CHECKPOINT": "checkpoint-nobody-may-know",
}
COMMANDS = (
    "status --json",
    "status hidden",
    "list --json",
    "dry-run hidden.yaml --json",
    "dry-run hidden.yaml",
    "run hidden.yaml",  # refused, since it is running
    "dead-letters list hidden.yaml",
    "dead-letters show hidden.yaml",
)
# Spark has to find its offsets again, and we the records that are left out: these files name topics.
NEEDED = {"IN": ("offsets", "moldau-left-out.json")}


@pytest.mark.timeout(600)
def test_nothing_tells_what_references_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, str] = {}
    with BrokerProcess(tmp_path / "broker", log_level="WARNING") as broker:
        secrets = SECRETS | {"SERVERS": broker.bootstrap}
        for name in set(secrets) - {"OUT"}:
            monkeypatch.setenv(name, secrets[name])
        (tmp_path / "secrets.properties").write_text(f"out={secrets['OUT']}\n")
        (tmp_path / "hidden.yaml").write_text(PIPELINE)
        for name in ("IN", "OUT", "DEAD"):
            make_topic(broker.bootstrap, name=secrets[name])
        produce_json(broker.bootstrap, secrets["IN"], ({"n": n} for n in range(1, 100)))
        port = free_port()
        with PipelineProcess(tmp_path, "hidden.yaml", "--metrics-port", str(port)) as run:
            run.until(lambda: len(read_topic(broker.bootstrap, secrets["OUT"])) == 89, "all is written")
            produce(broker.bootstrap, secrets["IN"], [{"value": b"no JSON"}, {"value": b'{"n": 0}'}])
            # Ten of the expectation, and of each query: what is no JSON (once for each try), and a division by zero.
            run.until(lambda: len(read_topic(broker.bootstrap, secrets["DEAD"])) >= 14, "the dead letters are there")
            run.until(lambda: run.query_facts("hidden", "out")["progress"]["dead_letters"] == 12, "they are counted")
            run.until_state("hidden", "RUNNING")
            assert "goes to the dead letters: Division by zero" in run.output()
            told |= {text: _output(tmp_path, text) for text in COMMANDS}
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
                told["metrics"] = response.read().decode()
            broker.kill()
            assert run.until_state("hidden", "RETRYING")["reason"].startswith("No broker could be reached: cannot")
            told |= {
                f"{text}, without a broker": _output(tmp_path, text) for text in ("status hidden", "status --json")
            }
            broker.start()
            run.until_state("hidden", "RUNNING")
            assert run.stop() == 0
        told["run"] = run.output()
        with PipelineProcess(tmp_path, "hidden.yaml", "--json", "--available-now") as run:
            assert run.wait() == 0, run.output()
    told["run --json"] = run.output()
    assert '"dead_letters": 12' in told["status --json"]
    assert "12 dead letters, the last: " in told["run"]
    assert "${env:CHECKPOINT}" in json.loads(told["status --json"])[0]["checkpoint"]
    for path in [*(tmp_path / "state").rglob("*"), *(tmp_path / secrets["CHECKPOINT"]).rglob("*")]:
        if path.is_file():
            told[str(path.relative_to(tmp_path))] = path.read_text(errors="replace")
    leaks = [
        f"{where}: {name}"
        for where, text in told.items()
        for name, value in secrets.items()
        if value in text and not any(file in where for file in NEEDED.get(name, ()))
    ]
    assert leaks == []


def _output(folder: Path, arguments: str) -> str:
    done = pipeline_command(folder, *arguments.split())
    return done.stdout + done.stderr

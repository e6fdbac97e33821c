"""`connect-standalone` with Kafka's sample files: file → topic → file, killed in between."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from moldau.cli import config_samples
from moldau.config.properties import format_properties, parse_properties
from soak.broker_process import command
from soak.pipeline_process import environment
from tests.integration.pipelines.processes import PipelineProcess, read_topic

TOPIC = "connect-test"  # as in the samples
SAMPLES = ("connect-file-source.properties", "connect-file-sink.properties")


class Standalone(PipelineProcess):
    def start(self) -> None:
        with (self.folder / "run.log").open("ab") as output:
            self._process = subprocess.Popen(
                [command("connect-standalone"), *self.arguments],
                cwd=self.folder,
                env=environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


@pytest.fixture
def folder(tmp_path: Path, bootstrap: str) -> Path:
    """The samples, with a worker that has its broker and its offsets elsewhere."""
    config_samples.main([str(tmp_path)])
    worker = tmp_path / "connect-standalone.properties"
    here = {"bootstrap.servers": bootstrap, "offset.storage.file.filename": str(tmp_path / "connect.offsets")}
    worker.write_text(format_properties(parse_properties(worker.read_text()) | here))
    return tmp_path


@pytest.mark.timeout(300)
def test_every_line_is_in_the_topic_as_connect_writes_it_and_once_in_the_sink_after_a_kill(
    folder: Path, bootstrap: str
) -> None:
    source, sink = folder / "test.txt", folder / "test.sink.txt"
    source.write_text('hello\nÄ "quoted" \\ line\nwithout a line br')
    lines = ["hello", 'Ä "quoted" \\ line']

    def sunk() -> list[str]:
        return sink.read_text().splitlines() if sink.exists() else []

    with Standalone(folder, "connect-standalone.properties", *SAMPLES) as run:
        run.until(lambda: sunk() == lines, "the first lines are in the sink")
        for number in range(300):
            with source.open("a") as output:
                output.write("eak\n" if number == 0 else f"{number}\n")
        lines += ["without a line break", *(str(number) for number in range(1, 300))]
        run.until(lambda: len(sunk()) > 2, "lines come while it runs")
        run.kill()
        with source.open("a") as output:
            output.write("while it was gone\n")
        run.start()
        lines.append("while it was gone")
        run.until(lambda: len(sunk()) >= len(lines), "all lines are in the sink")
        assert sunk() == lines
        assert run.stop() == 0
    head = '{"schema":{"type":"string","optional":false},"payload":'
    expected = [f"{head}{json.dumps(line, ensure_ascii=False)}}}".encode() for line in lines]
    found = read_topic(bootstrap, TOPIC)
    assert [record.value for record in found] == expected
    assert {record.key for record in found} == {None}


def test_wrong_files_are_refused_before_spark_starts(folder: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [command("connect-standalone.sh"), "connect-standalone.properties", *arguments],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    (folder / "unknown.json").write_text('{"name": "x", "config": {"connector.class": "FileStreamSorce"}}')
    (folder / "nameless.json").write_text('{"connector.class": "FileStreamSource"}')
    code, message = said("unknown.json")
    assert (code, "did you mean org.apache.kafka.connect.file.FileStreamSourceConnector?" in message) == (2, True)
    code, message = said("nameless.json")
    assert (code, "nameless.json: the connector has no name" in message) == (2, True)
    code, message = said("connect-console-source.properties")
    assert (code, "standard input is not supported" in message) == (2, True)

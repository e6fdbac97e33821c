"""From a rotated log to a topic, and from there to a directory and a file: kill -9 loses and doubles nothing."""

from __future__ import annotations

import json
import random
import time
from functools import partial
from pathlib import Path

import pytest

from soak.broker_process import BrokerProcess
from tests.integration.conftest import make_topic
from tests.integration.pipelines.processes import PipelineProcess, read_topic

SLOW_S = 250.0  # three queries in a new process, on a busy machine

TAIL = """
sources:
  log: {connector: lines, path: app.log*, maxBytesPerTrigger: 2000}
sinks:
  copied: {connector: topic, topic: copied}
"""
FILES = """
sources:
  copied: {connector: topic, topic: copied, format: json, schema: value STRING, maxOffsetsPerTrigger: 150}
sinks:
  files: {connector: directory, path: files, format: json, from: copied}
  file: {connector: lines, path: file.jsonl, from: copied}
"""


def values(texts: list[str]) -> list[int]:
    return sorted(int(json.loads(line)["value"]) for text in texts for line in text.splitlines())


@pytest.mark.timeout(1200)
def test_each_line_of_a_rotated_log_is_once_in_topic_directory_and_file_over_kills(tmp_path: Path) -> None:
    draw = random.Random(11)
    log, files, file = tmp_path / "app.log", tmp_path / "files", tmp_path / "file.jsonl"
    (tmp_path / "tail.yaml").write_text(TAIL)
    (tmp_path / "files.yaml").write_text(FILES)
    written = 0

    def write_log(lines: int) -> None:
        """Parts of lines at a time; the file is renamed now and then."""
        nonlocal written
        for _ in range(lines):
            with log.open("ab", buffering=0) as out:
                out.write(b"%d" % written)
                out.write(b"\n")
            written += 1
            if draw.random() < 0.02:
                log.rename(tmp_path / f"app.log.{written}")

    def published() -> int:
        return len(list(files.glob("*.json")))

    def has_published(before: int) -> bool:
        return published() > before

    with BrokerProcess(tmp_path / "broker", log_level="WARNING") as broker:
        make_topic(broker.bootstrap, 2, name="copied")
        arguments = ("tail.yaml", "files.yaml", "--bootstrap-server", broker.bootstrap)
        for _ in range(2):
            write_log(300)
            before = published()
            with PipelineProcess(tmp_path, *arguments) as run:
                run.until(partial(has_published, before), "files are published", SLOW_S)
                write_log(100)
                time.sleep(draw.uniform(0, 1))  # anywhere in a batch
                run.kill()
        with PipelineProcess(tmp_path, *arguments) as run:

            def is_all_there() -> bool:
                found = [path.read_text() for path in files.glob("*.json")]
                return len(values(found)) >= written and len(file.read_bytes().splitlines()) >= written

            run.until(is_all_there, "all lines have arrived", SLOW_S)
            assert run.stop() == 0
        copied = [(record.value or b"").decode() for record in read_topic(broker.bootstrap, "copied")]
    everything = list(range(written))
    assert values(copied) == everything
    assert values([path.read_text() for path in files.glob("*.json")]) == everything
    assert values([file.read_text()]) == everything

"""The disk with the checkpoints is full: the query says so, waits, and continues when there is space."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines.engine.supervisor import State
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.files import RUN_S, Output, running, send
from tests.integration.waiting import eventually


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_checkpoint_disk_is_told_and_the_query_continues_when_there_is_space(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, small_disk: Path
) -> None:
    topic, sink = new_topic(), new_topic()
    file = tmp_path / "copy.yaml"
    file.write_text(
        f"sources:\n  a: {{connector: topic, topic: {topic}, format: json, schema: n INT}}\n"
        f"sinks:\n  out: {{connector: topic, topic: {sink}}}\n"
        f"settings: {{kafka.bootstrap.servers: '{bootstrap}', checkpoint: '{small_disk}', "
        "restart delay max: 1 second}\n"
    )
    output = Output(bootstrap, sink)
    send(bootstrap, topic, {"n": 1})
    with running(spark, [file]) as supervisor:
        (query,) = supervisor.queries
        output.wait_for({"n": 1})
        filler = small_disk / "filler"
        _fill(filler)
        send(bootstrap, topic, {"n": 2})
        eventually(lambda: query.state is State.RETRYING, "retrying", RUN_S)
        assert "No space left on device" in query.reason
        assert "\n" not in query.reason
        filler.unlink()
        output.wait_for({"n": 1}, {"n": 2})
        eventually(lambda: query.state is State.RUNNING, "running", RUN_S)
    output.close()


def _fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(b"x" * 512)

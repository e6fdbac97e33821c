"""`moldau pipeline run` as a process, as a user starts it, and what it leaves in topics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import confluent_kafka
import psutil

from soak.broker_process import command
from soak.pipeline_process import environment, family, kill_run, start_run
from tests.integration.spark.topics import produce
from tests.integration.waiting import eventually

START_S = 200.0  # Spark's start, on a busy machine
COMMAND_S = 200


class PipelineProcess:
    """`with PipelineProcess(folder, "counts.yaml", "--bootstrap-server", …) as run:` starts it, and kills what is left.

    Files are relative to `folder`, where the checkpoints are by default, too. Its state is in `folder/state`.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = start_run(self.folder, *self.arguments)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def family(self) -> list[psutil.Process]:
        """The command, Spark's JVM and all processes of Python."""
        return family(self.pid)

    def send_all(self, number: signal.Signals, *, group: bool = True) -> None:
        """To its process group, as a terminal or `timeout` does, or to each process, as systemd does."""
        if group:
            os.killpg(self.pid, number)
            return
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait(self, within_s: float = COMMAND_S) -> int:
        """Its exit code, when it ends."""
        assert self._process is not None
        return self._process.wait(within_s)

    def stop(self) -> int:
        """As SIGTERM does; returns the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self, *, alone: bool = False) -> None:
        """kill -9 of all of it, as when the machine goes; or of the command alone, whose JVM has to notice and end."""
        if self._process is None:
            return
        process, self._process = self._process, None
        kill_run(process, alone=alone)

    def output(self) -> str:
        """All that this and earlier runs in the folder printed."""
        return (self.folder / "run.log").read_text(errors="replace")

    def until(self, is_so: Callable[[], object], what: str, within_s: float = START_S) -> None:
        """Waits for it, and fails at once if the process has ended."""

        def checked() -> object:
            if is_so():
                return True
            assert self._process is not None
            assert self._process.poll() is None, f"ended before: {what}\n{self.output()}"
            return False

        try:
            eventually(checked, what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.facts()}\n{self.output()}") from None

    def until_state(self, pipeline: str, *states: str) -> Mapping[str, Any]:
        """Waits until the pipeline is in one of these states; returns what is known about its first query."""
        self.until(lambda: self.facts().get(pipeline, {}).get("state") in states, f"{pipeline} is {states}")
        return dict(self.facts()[pipeline]["queries"][0])

    def query_facts(self, pipeline: str, query: str) -> dict[str, Any]:
        return next(dict(each) for each in self.facts()[pipeline]["queries"] if each["name"] == query)

    def facts(self) -> dict[str, dict[str, Any]]:
        """What the state files of the folder say, by pipeline."""
        found = (json.loads(path.read_text()) for path in (self.folder / "state").glob("*.json"))
        return {facts["pipeline"]: facts for facts in found}


def pipeline_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`moldau pipeline …` in this folder, to its end."""
    return subprocess.run(
        [command("moldau"), "pipeline", *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


def produce_json(bootstrap: str, topic: str, rows: Iterable[Mapping[str, Any]], partition: int = 0) -> None:
    produce(bootstrap, topic, [{"value": json.dumps(row).encode(), "partition": partition} for row in rows])


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, Any], ...] = ()

    @property
    def json(self) -> Any:
        return None if self.value is None else json.loads(self.value)


def read_topic(bootstrap: str, topic: str) -> list[Record]:
    """All committed records, partition by partition; none if there is no such topic."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-a-test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        records: dict[int, list[Record]] = {partition: [] for partition in sorted(found)}
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in records])
        open_partitions = set(records)
        while open_partitions:
            message = consumer.poll(30)
            assert message is not None, f"{topic} is not read to its end"
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                records[partition].append(
                    Record(message.key(), message.value(), tuple(message.headers() or ()))  # type: ignore[arg-type]
                )
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                open_partitions.discard(partition)
            else:
                raise AssertionError(str(error))
        return [record for partition in records.values() for record in partition]
    finally:
        consumer.close()

"""State topics in memory, and a runner that only writes down what it is asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from moldau.errors import ConfigError
from moldau.pipelines.worker.herder import Door, Herder
from moldau.pipelines.worker.records import Record, State


class MemoryTopics:
    def __init__(self) -> None:
        self.state = State()
        self.lock = threading.Lock()
        self.written: list[Record] = []

    def write(self, records: Sequence[Record], *, is_read: bool = True) -> None:
        self.written += records
        for record in records:
            self.state.apply(record.topic, record.key.encode(), record.data)


class RecordingRunner:
    def __init__(self) -> None:
        self.restarts: list[tuple[str, bool]] = []
        self.forgotten: list[str] = []
        self.is_busy = False

    def restart(self, name: str, *, only_failed: bool = False) -> None:
        self.restarts.append((name, only_failed))

    def is_idle(self, name: str) -> bool:
        return not self.is_busy

    def forget_checkpoint(self, name: str) -> None:
        self.forgotten.append(name)

    def log(self, name: str) -> Sequence[str]:
        return [f"{name} started"]


def type_of(config: Mapping[str, str]) -> str:
    return "sink" if "Sink" in config.get("connector.class", "") else "source"


def validate(config: Mapping[str, str]) -> Mapping[str, Any]:
    errors = [] if config.get("connector.class") else ["connector.class is missing"]
    return {"configs": [{"value": {"name": "connector.class", "errors": errors}}]}


def check_file(name: str, text: str) -> None:
    if "sinks" not in text:
        raise ConfigError(f"pipeline {name} has no sinks")


def memory_herder() -> tuple[Herder, MemoryTopics, RecordingRunner]:
    topics, runner = MemoryTopics(), RecordingRunner()
    herder = Herder(topics, Door(type_of, validate, check_file), "a-cluster")
    herder.runner, herder.is_ready = runner, True
    return herder, topics, runner

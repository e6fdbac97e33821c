"""The records of a worker's three compacted topics, in the formats of Kafka Connect, and what they add up to.

    configs   connector-NAME         {"properties": {…}}                the configuration, references unresolved
              task-NAME-N            {"properties": {…}}                what a task does
              commit-NAME            {"tasks": 2}                       how many tasks there are
              target-state-NAME      {"state": "PAUSED", "state.v2": "STOPPED"}
              pipeline-NAME          {"properties": {"file": "…"}}      ours: the text of a pipeline file
    status    status-connector-NAME  {"state": "RUNNING", "trace": null, "worker_id": "…", "generation": 3, …}
              status-task-NAME-N     likewise
              status-topic-T:connector-NAME   {"topic": {"name": "T", "connector": "NAME", "task": 0, …}}
              moldau-active-worker   {"url": "http://…"}                ours
    offsets   ["NAME",{"query":"out"}]   {"batch": 7, "files": {…}}     ours: the checkpoint of a query

Values are JSON without schemas; a null value deletes. Connect ignores keys that it does not know. Nothing here does
I/O: `State.apply` takes records in the order of their topics.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

ACTIVE = "moldau-active-worker"
_TASK = re.compile(r"(.+)-(\d+)", re.DOTALL)
_TOPIC = re.compile(r"([^:]+):connector-(.+)", re.DOTALL)


class Kind(StrEnum):
    CONNECTOR = "connector"
    PIPELINE = "pipeline"


class Target(StrEnum):
    """What a connector should be doing."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class Topic(StrEnum):
    """Which of the three a record belongs to."""

    CONFIG = "config"
    STATUS = "status"
    OFFSET = "offset"


class Record(NamedTuple):
    topic: Topic
    key: str
    value: Any  # JSON; None deletes

    @property
    def data(self) -> bytes | None:
        return (
            None if self.value is None else json.dumps(self.value, ensure_ascii=False, separators=(",", ":")).encode()
        )


class Status(NamedTuple):
    """Of a connector or a task, in Connect's words."""

    state: str
    worker_id: str
    trace: str | None = None
    generation: int = 0

    def facts(self) -> dict[str, Any]:
        """As the REST interface tells it."""
        facts = {"state": self.state, "worker_id": self.worker_id}
        return facts | {"trace": self.trace} if self.trace else facts


@dataclass(frozen=True)
class Definition:
    """A connector or a pipeline file, as it was given."""

    name: str
    kind: Kind
    properties: Mapping[str, str]


def definition_records(definition: Definition, target: Target | None = None) -> list[Record]:
    key = f"{definition.kind}-{definition.name}"
    record = Record(Topic.CONFIG, key, {"properties": dict(definition.properties)})
    return [*([] if target is None else [target_record(definition.name, target)]), record]


def removal_records(definition: Definition, state: State) -> list[Record]:
    """Of the configuration and of all statuses. Offsets stay, as in Connect: a new connector of that name continues."""
    name = definition.name
    config = [f"{definition.kind}-{name}", f"target-state-{name}"]
    status = [f"status-connector-{name}", *(f"status-task-{name}-{task}" for task in state.task_statuses.get(name, ()))]
    status += [f"status-topic-{topic}:connector-{name}" for topic in state.topics.get(name, ())]
    return [
        *(Record(Topic.CONFIG, key, None) for key in config),
        *(Record(Topic.STATUS, key, None) for key in status),
    ]


def target_record(name: str, target: Target) -> Record:
    """Workers before Connect 3.5 know no STOPPED: they see PAUSED."""
    old = Target.PAUSED if target is Target.STOPPED else target
    return Record(Topic.CONFIG, f"target-state-{name}", {"state": str(old), "state.v2": str(target)})


def task_records(name: str, configs: Iterable[Mapping[str, str]]) -> list[Record]:
    tasks = [
        Record(Topic.CONFIG, f"task-{name}-{number}", {"properties": dict(config)})
        for number, config in enumerate(configs)
    ]
    return [*tasks, Record(Topic.CONFIG, f"commit-{name}", {"tasks": len(tasks)})]


def status_record(name: str, status: Status | None, task: int | None = None) -> Record:
    key = f"status-connector-{name}" if task is None else f"status-task-{name}-{task}"
    value = status and {
        "state": status.state,
        "trace": status.trace,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "version": None,
    }
    return Record(Topic.STATUS, key, value)


def topic_record(connector: str, topic: str, now_ms: int | None) -> Record:
    """A topic that a connector uses; None for the time: no longer."""
    value = {"topic": {"name": topic, "connector": connector, "task": 0, "discoverTimestamp": now_ms}}
    return Record(Topic.STATUS, f"status-topic-{topic}:connector-{connector}", None if now_ms is None else value)


def active_record(url: str) -> Record:
    return Record(Topic.STATUS, ACTIVE, {"url": url})


def checkpoint_record(name: str, query: str, value: Mapping[str, Any] | None) -> Record:
    return Record(Topic.OFFSET, json.dumps([name, {"query": query}], separators=(",", ":"), ensure_ascii=False), value)


@dataclass
class State:
    """All that the topics say."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    task_configs: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)
    task_counts: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, Status] = field(default_factory=dict)
    task_statuses: dict[str, dict[int, Status]] = field(default_factory=dict)
    topics: dict[str, dict[str, int]] = field(default_factory=dict)  # by connector: since when it is known
    checkpoints: dict[str, dict[str, Any]] = field(default_factory=dict)  # by connector and query
    active_url: str = ""

    def target(self, name: str) -> Target:
        return self.targets.get(name, Target.STARTED)

    def tasks(self, name: str) -> list[dict[str, str]]:
        """The configurations of a connector's tasks; none if they are not complete."""
        configs, count = self.task_configs.get(name, {}), self.task_counts.get(name, 0)
        return [configs[number] for number in range(count)] if all(n in configs for n in range(count)) else []

    def apply(self, topic: Topic, key: bytes | None, data: bytes | None) -> None:
        """A record that is no record of Connect's or ours changes nothing."""
        try:
            text = (key or b"").decode()
            value = None if data is None else json.loads(data)
            if topic is Topic.OFFSET:
                self._apply_checkpoint(text, value)
                return
            for prefix, take in _READERS[topic].items():
                if text.startswith(prefix):
                    take(self, text.removeprefix(prefix), value)
                    return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("ignored a record of the %s topic with the key %r: %s", topic, key, error)

    def _apply_checkpoint(self, key: str, value: Any) -> None:
        name, partition = json.loads(key)
        if "query" not in partition:
            return  # an offset of Connect's own
        _put(self.checkpoints.setdefault(name, {}), partition["query"], value)

    def _apply_definition(self, kind: Kind, name: str, value: Any) -> None:
        if value is None:
            self.definitions.pop(name, None)
            self.task_configs.pop(name, None)
            self.task_counts.pop(name, None)
        else:
            self.definitions[name] = Definition(name, kind, dict(value["properties"]))

    def _apply_target(self, name: str, value: Any) -> None:
        _put(self.targets, name, _made(value, lambda: Target(value.get("state.v2") or value["state"])))

    def _apply_task(self, rest: str, value: Any) -> None:
        name, number = _matched(_TASK, rest)
        _put(self.task_configs.setdefault(name, {}), int(number), _made(value, lambda: dict(value["properties"])))

    def _apply_commit(self, name: str, value: Any) -> None:
        _put(self.task_counts, name, _made(value, lambda: int(value["tasks"])))

    def _apply_status(self, name: str, value: Any) -> None:
        _put(self.statuses, name, _made(value, lambda: _status(value)))

    def _apply_task_status(self, rest: str, value: Any) -> None:
        name, number = _matched(_TASK, rest)
        _put(self.task_statuses.setdefault(name, {}), int(number), _made(value, lambda: _status(value)))

    def _apply_topic(self, rest: str, value: Any) -> None:
        topic, name = _matched(_TOPIC, rest)
        _put(self.topics.setdefault(name, {}), topic, _made(value, lambda: int(value["topic"]["discoverTimestamp"])))

    def _apply_active(self, _: str, value: Any) -> None:
        self.active_url = str(value["url"]) if value else ""


_READERS: Mapping[Topic, Mapping[str, Any]] = {
    Topic.CONFIG: {
        "connector-": lambda state, name, value: state._apply_definition(Kind.CONNECTOR, name, value),
        "pipeline-": lambda state, name, value: state._apply_definition(Kind.PIPELINE, name, value),
        "target-state-": State._apply_target,
        "commit-": State._apply_commit,
        "tasks-fencing-": lambda *_: None,
        "task-": State._apply_task,
    },
    Topic.STATUS: {
        "status-connector-": State._apply_status,
        "status-task-": State._apply_task_status,
        "status-topic-": State._apply_topic,
        ACTIVE: State._apply_active,
    },
}


def _status(value: Mapping[str, Any]) -> Status:
    return Status(str(value["state"]), str(value["worker_id"]), value.get("trace"), int(value["generation"]))


def _matched(pattern: re.Pattern[str], text: str) -> tuple[str, str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"unexpected key {text!r}")
    return match[1], match[2]


def _made(value: Any, make: Callable[[], Any]) -> Any:
    """None, which deletes, stays None."""
    return None if value is None else make()


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value

"""What can be asked of the connectors of a worker group: Connect's word for it is herder.

Reads are answered from the state topics, by any worker. Writes are for the active worker alone: they end up as records
in the config topic, and the runner acts on those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.worker import records
from moldau.pipelines.worker.offsets import altered, shown
from moldau.pipelines.worker.records import Definition, Kind, Record, State, Target

NAME_LENGTH_MAX = 200  # it is a folder, too
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
)


class RestError(MoldauError):
    """An answer with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Running(Protocol):
    """The runner of the active worker."""

    def restart(self, name: str, *, only_failed: bool = False) -> None: ...
    def is_idle(self, name: str) -> bool: ...
    def forget_checkpoint(self, name: str) -> None: ...
    def log(self, name: str) -> Sequence[str]: ...


class Topics(Protocol):
    """The state topics; `state` is to be read under `lock`."""

    state: State
    lock: Any

    def write(self, records: Sequence[Record], *, is_read: bool = True) -> None: ...


class Door(NamedTuple):
    """What a herder knows about kinds of connectors and pipeline files."""

    type_of: Callable[[Mapping[str, str]], str]  # source, sink or unknown
    validate: Callable[[Mapping[str, str]], Mapping[str, Any]]  # as the REST interface answers
    check_file: Callable[[str, str], None]  # name and text of a pipeline file; raises ConfigError


class Herder:
    def __init__(self, topics: Topics, door: Door, cluster_id: str = "") -> None:
        self.cluster_id = cluster_id
        self.runner: Running | None = None  # of the active worker, while this is the one
        self.is_ready = False  # it is active, or knows who is
        self.url = ""
        self.door = door
        self._topics = topics

    @property
    def is_active(self) -> bool:
        return self.runner is not None

    @property
    def active_url(self) -> str:
        with self._topics.lock:
            return self._topics.state.active_url

    # Reads.

    def names(self, kind: Kind = Kind.CONNECTOR) -> list[str]:
        with self._topics.lock:
            return [each.name for each in self._topics.state.definitions.values() if each.kind is kind]

    def info(self, name: str) -> dict[str, Any]:
        definition, state = self._definition(name), self._topics.state
        with self._topics.lock:
            tasks = [{"connector": name, "task": number} for number in range(len(state.tasks(name)))]
        config = dict(definition.properties)
        return {"name": name, "config": config, "tasks": tasks, "type": self.door.type_of(config)}

    def config(self, name: str) -> dict[str, str]:
        return dict(self._definition(name).properties)

    def status(self, name: str, kind: Kind = Kind.CONNECTOR) -> dict[str, Any]:
        with self._topics.lock:
            state = self._topics.state
            definition, status = state.definitions.get(name), state.statuses.get(name)
            tasks = dict(state.task_statuses.get(name, {}))
        if definition is None or definition.kind is not kind:
            raise RestError(404, f"No status found for {kind} {name}")
        connector = status.facts() if status else {"state": "UNASSIGNED", "worker_id": ""}
        facts: dict[str, Any] = {"name": name, "connector": connector}
        facts["tasks"] = [{"id": task} | tasks[task].facts() for task in sorted(tasks)]
        type_name = self.door.type_of(definition.properties) if kind is Kind.CONNECTOR else str(kind)
        return facts | {"type": type_name}

    def tasks(self, name: str) -> list[dict[str, Any]]:
        self._definition(name)
        with self._topics.lock:
            configs = self._topics.state.tasks(name)
        return [{"id": {"connector": name, "task": n}, "config": config} for n, config in enumerate(configs)]

    def task_status(self, name: str, task: int) -> dict[str, Any]:
        found = [each for each in self.status(name)["tasks"] if each["id"] == task]
        if not found:
            raise RestError(404, f"No status found for task {name}-{task}")
        return dict(found[0])

    def topics(self, name: str) -> list[str]:
        self._definition(name)
        with self._topics.lock:
            return sorted(self._topics.state.topics.get(name, ()))

    def offsets(self, name: str) -> list[dict[str, Any]]:
        is_sink = self.door.type_of(self._definition(name).properties) == "sink"
        with self._topics.lock:
            copies = dict(self._topics.state.checkpoints.get(name, {}))
        return shown(copies, is_sink=is_sink)

    def log(self, name: str) -> Sequence[str]:
        self._definition(name, Kind.PIPELINE)
        return self._runner.log(name)

    # Writes.

    def put(
        self, name: str, config: Mapping[str, str], target: Target | None = None, *, may_exist: bool = True
    ) -> tuple[bool, dict[str, Any]]:
        """Whether it is new, and its info."""
        _check_name(name)
        errors = [
            message for each in self.door.validate(config)["configs"] for message in (each["value"].get("errors") or ())
        ]
        if errors:
            raise RestError(400, _invalid(errors))
        is_new = self._put(Definition(name, Kind.CONNECTOR, dict(config)), target, may_exist=may_exist)
        return is_new, self.info(name)

    def patch(self, name: str, changes: Mapping[str, str | None]) -> dict[str, Any]:
        config: dict[str, str | None] = {**self.config(name), **changes}
        return self.put(name, {key: value for key, value in config.items() if value is not None})[1]

    def put_file(self, name: str, text: str) -> bool:
        """A pipeline file; whether it is new."""
        _check_name(name)
        try:
            self.door.check_file(name, text)
        except ConfigError as error:
            raise RestError(400, str(error)) from error
        return self._put(Definition(name, Kind.PIPELINE, {"file": text}), Target.STARTED, may_exist=True)

    def _put(self, definition: Definition, target: Target | None, *, may_exist: bool) -> bool:
        with self._topics.lock:
            known = self._topics.state.definitions.get(definition.name)
        if known is not None and (known.kind is not definition.kind or not may_exist):
            raise RestError(409, f"{known.kind.capitalize()} {definition.name} already exists")
        self._topics.write(records.definition_records(definition, target))
        return known is None

    def delete(self, name: str, kind: Kind = Kind.CONNECTOR) -> None:
        definition = self._definition(name, kind)
        with self._topics.lock:
            removed = records.removal_records(definition, self._topics.state)
        self._topics.write(removed)

    def set_target(self, name: str, target: Target, kind: Kind = Kind.CONNECTOR) -> None:
        self._definition(name, kind)
        self._topics.write([records.target_record(name, target)])

    def restart(self, name: str, *, only_failed: bool = False) -> None:
        self._definition(name)
        self._runner.restart(name, only_failed=only_failed)

    def restart_task(self, name: str, task: int) -> None:
        """Its connector restarts as a whole."""
        if task not in range(len(self.tasks(name))):
            raise RestError(404, f"Unknown task: {name}-{task}")
        self._runner.restart(name)

    def reset_topics(self, name: str) -> None:
        self._topics.write([records.topic_record(name, topic, None) for topic in self.topics(name)])

    def alter_offsets(self, name: str, offsets: Sequence[Mapping[str, Any]]) -> str:
        """Where a sink connector goes on from."""
        properties = self._stopped(name).properties
        if self.door.type_of(properties) != "sink":
            raise RestError(
                400,
                f"The offsets of source connector {name} cannot be altered: delete them, and it starts over",
            )
        with self._topics.lock:
            copies = dict(self._topics.state.checkpoints.get(name, {}))
        try:
            changes = list(altered(name, copies, offsets))
        except ConfigError as error:
            raise RestError(400, str(error)) from error
        self._runner.forget_checkpoint(name)
        self._topics.write(changes)
        return "The offsets for this connector have been altered successfully"

    def reset_offsets(self, name: str) -> str:
        self._stopped(name)
        with self._topics.lock:
            queries = list(self._topics.state.checkpoints.get(name, ()))
        self._runner.forget_checkpoint(name)
        self._topics.write([records.checkpoint_record(name, query, None) for query in queries])
        return "The offsets for this connector have been reset successfully"

    # Checks.

    @property
    def _runner(self) -> Running:
        if self.runner is None:
            raise RestError(409, "This worker is not the active one: try again")
        return self.runner

    def _definition(self, name: str, kind: Kind = Kind.CONNECTOR) -> Definition:
        with self._topics.lock:
            found = self._topics.state.definitions.get(name)
        if found is None or found.kind is not kind:
            raise RestError(404, f"{kind.capitalize()} {name} not found")
        return found

    def _stopped(self, name: str) -> Definition:
        definition = self._definition(name)
        with self._topics.lock:
            target = self._topics.state.target(name)
        if target is not Target.STOPPED:
            raise RestError(400, _NOT_STOPPED.format(name=name))
        if not self._runner.is_idle(name):
            raise RestError(409, f"Connector {name} is still ending its last batch: try again")
        return definition


def _check_name(name: str) -> None:
    if not name.strip() or _CONTROL.search(name) or "/" in name or name.startswith(".") or len(name) > NAME_LENGTH_MAX:
        raise RestError(
            400,
            f"Connector name {name!r} is invalid: a name has 1 to {NAME_LENGTH_MAX} characters, no slash and no "
            "control characters, and does not begin with a dot",
        )


def _invalid(errors: Sequence[str]) -> str:
    lines = [f"Connector configuration is invalid and contains the following {len(errors)} error(s):", *errors]
    where = "You can also find the above list of errors at the endpoint "
    return "\n".join([*lines, f"{where}`/connector-plugins/{{connectorType}}/config/validate`"])

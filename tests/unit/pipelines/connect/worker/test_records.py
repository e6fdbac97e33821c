"""The worker's topics are Kafka Connect's: its records, written down from its source, are read and written."""

from __future__ import annotations

import json

import pytest

from moldau.pipelines.worker import records
from moldau.pipelines.worker.records import Definition, Kind, Record, State, Status, Target, Topic

CONNECT = Definition("lines", Kind.CONNECTOR, {"name": "lines", "file": "${file:secrets.properties:path}"})


def read(*given: tuple[Topic, str, str | None]) -> State:
    state = State()
    for topic, key, value in given:
        state.apply(topic, key.encode(), None if value is None else value.encode())
    return state


def fold(given: list[Record], state: State | None = None) -> State:
    state = state or State()
    for record in given:
        state.apply(record.topic, record.key.encode(), record.data)
    return state


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            records.definition_records(CONNECT)[0],
            "connector-lines",
            '{"properties":{"name":"lines","file":"${file:secrets.properties:path}"}}',
        ),
        (records.task_records("a-b", [{"k": "v"}])[0], "task-a-b-0", '{"properties":{"k":"v"}}'),
        (records.task_records("a-b", [{"k": "v"}])[1], "commit-a-b", '{"tasks":1}'),
        (
            records.target_record("lines", Target.STOPPED),
            "target-state-lines",
            '{"state":"PAUSED","state.v2":"STOPPED"}',
        ),
        (
            records.status_record("lines", Status("FAILED", "host:8083", "no file", 4), 2),
            "status-task-lines-2",
            '{"state":"FAILED","trace":"no file","worker_id":"host:8083","generation":4,"version":null}',
        ),
        (
            records.topic_record("lines", "out", 1700),
            "status-topic-out:connector-lines",
            '{"topic":{"name":"out","connector":"lines","task":0,"discoverTimestamp":1700}}',
        ),
    ],
)
def test_records_have_connects_keys_and_json(record: Record, key: str, value: str) -> None:
    assert (record.key, (record.data or b"").decode()) == (key, value)


def test_a_checkpoint_has_a_key_like_connects_offsets() -> None:
    record = records.checkpoint_record("lines", "out", {"batch": 1, "files": {}})
    assert record.key == '["lines",{"query":"out"}]'
    assert fold([record]).checkpoints == {"lines": {"out": {"batch": 1, "files": {}}}}


def test_records_of_a_connect_worker_are_read() -> None:
    state = read(
        (Topic.CONFIG, "session-key", '{"key":"x","algorithm":"HmacSHA256","creation-timestamp":1}'),
        (Topic.CONFIG, "connector-a", '{"properties":{"connector.class":"FileStreamSource"}}'),
        (Topic.CONFIG, "task-a-0", '{"properties":{"file":"x"}}'),
        (Topic.CONFIG, "tasks-fencing-a", '{"task-count":1}'),
        (Topic.CONFIG, "commit-a", '{"tasks":1}'),
        (Topic.CONFIG, "target-state-a", '{"state":"PAUSED"}'),
        (Topic.STATUS, "status-connector-a", '{"state":"PAUSED","trace":null,"worker_id":"h:1","generation":7}'),
        (Topic.OFFSET, '["a",{"filename":"x"}]', '{"position":3}'),
    )
    assert state.definitions["a"].properties == {"connector.class": "FileStreamSource"}
    assert state.tasks("a") == [{"file": "x"}]
    assert state.target("a") is Target.PAUSED
    assert state.statuses["a"] == Status("PAUSED", "h:1", None, 7)
    assert state.checkpoints == {}


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        (Topic.CONFIG, "connector-a", "not json"),
        (Topic.CONFIG, "connector-a", "[]"),
        (Topic.CONFIG, "target-state-a", '{"state":"DANCING"}'),
        (Topic.CONFIG, "task-a", '{"properties":{}}'),
        (Topic.STATUS, "status-connector-a", "{}"),
        (Topic.OFFSET, "no list", "{}"),
        (Topic.STATUS, "whatever", "{}"),
    ],
)
def test_a_strange_record_changes_nothing(topic: Topic, key: str, value: str) -> None:
    assert read((topic, key, value)) == State()


def test_an_incomplete_set_of_tasks_is_none() -> None:
    assert fold(records.task_records("a", [{"n": "0"}, {"n": "1"}])[1:]).tasks("a") == []


def test_a_deleted_connector_leaves_its_offsets_alone() -> None:
    state = fold(
        [
            *records.definition_records(CONNECT, Target.PAUSED),
            *records.task_records("lines", [{}]),
            records.status_record("lines", Status("RUNNING", "w")),
            records.status_record("lines", Status("RUNNING", "w"), 0),
            records.topic_record("lines", "out", 1),
            records.checkpoint_record("lines", "out", {"batch": 0}),
        ]
    )
    fold(records.removal_records(CONNECT, state), state)
    left = (state.definitions, state.targets, state.statuses, state.task_statuses["lines"], state.topics["lines"])
    assert not any(left)
    assert state.tasks("lines") == []
    assert state.checkpoints == {"lines": {"out": {"batch": 0}}}


def test_a_task_status_belongs_to_the_connector_with_digits_in_its_name() -> None:
    state = fold([records.status_record("a-1", Status("RUNNING", "w"), 12)])
    assert list(state.task_statuses) == ["a-1"]
    assert json.loads(records.status_record("a", Status("RUNNING", "w")).data or b"")["trace"] is None

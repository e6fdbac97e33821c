"""The worker's topics on a real broker: made compacted, read by everyone, written by the active worker alone."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from moldau.pipelines.worker import records
from moldau.pipelines.worker.config import WorkerConfig
from moldau.pipelines.worker.membership import Membership
from moldau.pipelines.worker.records import Definition, Kind, Target, Topic
from moldau.pipelines.worker.state_topics import FencedError, StateTopics
from tests.integration.waiting import eventually

LINES = Definition("lines", Kind.CONNECTOR, {"name": "lines", "file": "${env:FILE}"})


@pytest.fixture
def config(bootstrap: str, request: pytest.FixtureRequest) -> WorkerConfig:
    name = request.node.name
    topics = {f"{which}.storage.topic": f"{name}-{which}" for which in Topic}
    return WorkerConfig({"bootstrap.servers": bootstrap, "group.id": name, **topics}, Path())


@contextmanager
def opened(config: WorkerConfig) -> Iterator[StateTopics]:
    topics = StateTopics(config)
    topics.open()
    try:
        yield topics
    finally:
        topics.close()


def test_the_topics_are_made_compacted_and_a_second_worker_reads_what_the_first_wrote(config: WorkerConfig) -> None:
    with opened(config) as first:
        first.take_over()
        first.write(records.definition_records(LINES, Target.PAUSED))
        assert first.state.definitions == {"lines": LINES}
        with opened(config) as second:
            assert second.state.definitions == {"lines": LINES}
            first.write([records.target_record("lines", Target.STARTED)])
            eventually(lambda: second.state.targets["lines"] is Target.STARTED, "the second worker follows")
    names = [config.topic(which).name for which in Topic]
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    admin = AdminClient(config.client())
    for future in admin.describe_configs(asked).values():
        assert future.result()["cleanup.policy"].value == "compact"


def test_a_worker_that_was_replaced_cannot_write(config: WorkerConfig) -> None:
    with opened(config) as old, opened(config) as new:
        old.take_over()
        old.write(records.definition_records(LINES))
        new.take_over()
        with pytest.raises(FencedError):
            old.write([records.target_record("lines", Target.STOPPED)])
        new.write([records.target_record("lines", Target.PAUSED)])
        assert new.state.target("lines") is Target.PAUSED


def test_one_member_is_elected_and_another_only_when_it_leaves(config: WorkerConfig) -> None:
    with opened(config), ExitStack() as left:
        happened: list[queue.SimpleQueue[str]] = [queue.SimpleQueue(), queue.SimpleQueue()]
        members = [
            Membership(config, lambda e=events: e.put("elected"), lambda e=events: e.put("lost"))  # type: ignore[misc]
            for events in happened
        ]
        for member in members:
            left.callback(member.leave)
        members[0].join()
        assert happened[0].get(timeout=30) == "elected"
        members[1].join()
        with pytest.raises(queue.Empty):
            happened[1].get(timeout=5)  # as long as it takes to join
        assert happened[0].empty()
        members[0].leave()
        assert happened[1].get(timeout=30) == "elected"

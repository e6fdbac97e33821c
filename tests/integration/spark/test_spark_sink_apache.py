"""The sink on Apache Kafka: its transactions end there as on our broker, without a Spark in between."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from moldau.client.transactions import list_transactions
from moldau.errors import ErrorCode, KafkaError
from moldau.spark.sink.exactly_once import TaskMessage, abort_unfinished
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.records.test_apache import java, pytestmark  # noqa: F401 - skips where there are no jars
from tests.integration.spark.sinks import Sink, values
from tests.integration.waiting import eventually

TASKS = 300


def parts(tasks: int, rows: int = 100) -> list[range]:
    return [range(task * rows, task * rows + rows) for task in range(tasks)]


def expect(bootstrap: str, topic: str, numbers: Iterable[int]) -> None:
    """Apache answers the end of a transaction first, and writes its markers then."""
    wanted = list(numbers)
    eventually(lambda: values(bootstrap, topic) == wanted, f"{len(wanted)} rows are committed, once each")


@pytest.mark.parametrize("rows", [range(100), range(0)])
def test_a_topic_that_is_not_there_is_created(apache: str, rows: range) -> None:
    topic = f"made-by-the-sink-{len(rows)}"
    sink = Sink(apache, topic)
    sink.commit(0, [sink.write(0, 0, rows)])
    sink.commit(1, [sink.write(1, 0, range(100, 200))])
    expect(apache, topic, [*rows, *range(100, 200)])


def test_a_driver_may_die_anywhere_in_its_commit(apache: str) -> None:
    topic = make_topic(apache, 3)
    sink = Sink(apache, topic)
    for batch_id in range(6):
        mine = [range(part.start + 400 * batch_id, part.stop + 400 * batch_id) for part in parts(4)]
        sink.commit_and_die(batch_id, [sink.write(batch_id, *task) for task in enumerate(mine)], batch_id)
        for _ in range(2):
            sink.commit(batch_id, [sink.write(batch_id, *task) for task in enumerate(mine)])
            expect(apache, topic, range(400 * batch_id + 400))


def test_apache_s_own_tool_sees_no_lag_of_the_sink(apache: str) -> None:
    topic = make_topic(apache, 1)
    sink = Sink(apache, topic)
    for batch_id in range(2):
        sink.commit(batch_id, [sink.write(batch_id, task, part) for task, part in enumerate(parts(2, 1000))])
    opened = [sink.write(2, task, part) for task, part in enumerate(parts(2))]
    groups = [argument for task in range(2) for argument in ("--group", f"{sink.app}-{task}")]
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    described = java(tool, "--bootstrap-server", apache, "--describe", *groups)
    rows = [line.split()[:6] for line in described.splitlines() if line.startswith(sink.app)]
    assert sorted(rows) == [[f"{sink.app}-{task}", "moldau-sink-records", "0", "0", "0", "0"] for task in range(2)]
    sink.commit(2, opened)


def test_an_attempt_that_was_given_up_cannot_write_any_more(apache: str) -> None:
    topic = make_topic(apache, 3)
    sink = Sink(apache, topic, kafka__batch__size=1024)
    later: list[TaskMessage] = []

    def overtake(start: int) -> None:
        if start == 1000:
            later.append(sink.write(0, 0, range(2000)))

    with pytest.raises(KafkaError) as fenced:
        sink.write(0, 0, range(2000), before=overtake)
    assert fenced.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    sink.commit(0, later)
    expect(apache, topic, range(2000))


def test_a_batch_of_hundreds_of_tasks_is_committed_and_one_of_killed_tasks_leaves_nothing_open(apache: str) -> None:
    topic = make_topic(apache, 3)
    sink = Sink(apache, topic)
    sink.commit(0, [sink.write(0, task, part) for task, part in enumerate(parts(TASKS, 2))])
    expect(apache, topic, range(2 * TASKS))
    for task, part in enumerate(parts(3)):
        sink.write(1, task, part)
    with cluster_at(apache) as cluster:
        abort_unfinished(cluster, sink.app, range(3))
        states = {found.state for found in list_transactions(cluster) if found.transactional_id.startswith(sink.app)}
    assert "Ongoing" not in states
    expect(apache, topic, range(2 * TASKS))

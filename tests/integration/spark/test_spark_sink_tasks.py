"""Tasks and driver of the sink, called one after the other without Spark, on the real broker: who dies when, and what
becomes of the batch."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from moldau import Broker
from moldau.client.admin import delete_topics
from moldau.client.groups import delete_groups
from moldau.client.transactions import list_transactions
from moldau.errors import ErrorCode, InDoubtError, KafkaError
from moldau.spark.connections import close_idle
from moldau.spark.sink.exactly_once import TaskMessage, abort_tasks
from moldau.spark.sink.row_sink import send_idempotently
from tests.integration.cli.conftest import Commands
from tests.integration.clients import CODECS
from tests.integration.conftest import NewTopic, cluster_at, make_topic
from tests.integration.spark.sinks import FIRST_ENDED, Died, Sink, read, values
from tests.integration.waiting import eventually

TASKS = 4


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(3)


@pytest.fixture
def sink(bootstrap: str, topic: str) -> Sink:
    return Sink(bootstrap, topic)


def test_committed_readers_see_nothing_until_the_driver_commits(bootstrap: str, topic: str, sink: Sink) -> None:
    messages = [sink.write(0, task, range(task * 1000, task * 1000 + 1000)) for task in range(3)]
    assert values(bootstrap, topic) == []
    assert values(bootstrap, topic, "read_uncommitted") == list(range(3000))
    sink.commit(0, messages)
    assert values(bootstrap, topic) == list(range(3000))


@pytest.mark.parametrize("after_requests", range(2 + TASKS))  # those of the record, and an EndTxn for each task
def test_a_driver_may_die_at_every_point_of_its_commit(
    bootstrap: str, topic: str, sink: Sink, after_requests: int
) -> None:
    def written() -> list[TaskMessage]:
        return [sink.write(0, task, range(task * 100, task * 100 + 100)) for task in range(TASKS)]

    sink.commit_and_die(0, written(), after_requests)
    if after_requests < FIRST_ENDED:
        assert values(bootstrap, topic) == []
    for _ in range(2):
        sink.commit(0, written())
        assert values(bootstrap, topic) == list(range(100 * TASKS))


@pytest.mark.parametrize("tasks", [1, TASKS])
def test_a_write_without_txn_app_id_that_dies_in_its_commit_leaves_the_rows_of_whole_tasks(
    bootstrap: str, topic: str, tasks: int
) -> None:
    for ended in range(tasks):
        sink = Sink(bootstrap, topic)
        sink.app += f"-{ended}"
        messages = [sink.write(None, task, range(task * 100, task * 100 + 100)) for task in range(tasks)]
        sink.commit_and_die(None, messages, ended)
        with cluster_at(bootstrap) as cluster:
            abort_tasks(cluster, messages)  # as the broker does when they time out
    seen = Counter(value // 100 for value in values(bootstrap, topic))
    assert all(count % 100 == 0 for count in seen.values())
    assert sum(seen.values()) <= 100 * sum(range(tasks))  # of a single task: nothing


def test_a_driver_that_dies_before_its_commit_leaves_a_batch_to_be_written_again(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    for task in range(2):
        sink.write(0, task, range(task * 100, task * 100 + 100))
    sink.commit(0, [sink.write(0, task, range(task * 100, task * 100 + 100)) for task in range(2)])
    assert values(bootstrap, topic) == list(range(200))


def test_a_driver_that_dies_within_its_commit_leaves_a_batch_to_be_completed(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    parts = [range(task * 100, task * 100 + 100) for task in range(4)]
    sink.commit_and_die(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    replay = [sink.write(0, task, part) for task, part in enumerate(parts)]
    assert [message.done is not None for message in replay] == [True, False, False, False]
    sink.commit(0, replay)
    assert values(bootstrap, topic) == list(range(400))


def test_a_driver_that_dies_after_its_commit_leaves_a_batch_that_is_done(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    parts = [range(0), range(100), range(0)]
    for _ in range(3):
        sink.commit(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    assert values(bootstrap, topic) == list(range(100))


def test_a_batch_cut_into_other_tasks_or_rows_is_never_completed_by_guessing(
    bootstrap: str, topic: str, sink: Sink
) -> None:
    parts = [range(task * 100, task * 100 + 100) for task in range(4)]
    sink.commit_and_die(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    fewer = [sink.write(0, 0, range(200)), sink.write(0, 1, range(200, 400))]
    with pytest.raises(InDoubtError, match="written by 4 tasks"):
        sink.commit(0, fewer)
    others = [sink.write(0, 0, range(90)), *(sink.write(0, task, parts[task]) for task in (1, 2, 3))]
    with pytest.raises(InDoubtError, match="committed 100 rows"):
        sink.commit(0, others)
    sink.commit(0, [sink.write(0, task, part) for task, part in enumerate(parts)])
    assert values(bootstrap, topic) == list(range(400))


def test_a_task_that_fails_leaves_nothing_and_its_next_attempt_one_copy(bootstrap: str, topic: str, sink: Sink) -> None:
    def fail(start: int) -> None:
        if start >= 1000:
            raise Died

    with pytest.raises(Died):
        sink.write(0, 0, range(2000), before=fail)
    sink.commit(0, [sink.write(0, 0, range(2000))])
    assert values(bootstrap, topic) == list(range(2000))


def test_an_attempt_that_was_given_up_cannot_write_any_more(bootstrap: str, topic: str) -> None:
    sink = Sink(bootstrap, topic, kafka__batch__size=1024)
    later: list[TaskMessage] = []

    def overtake(start: int) -> None:
        if start == 1000:
            later.append(sink.write(0, 0, range(2000)))

    with pytest.raises(KafkaError) as fenced:
        sink.write(0, 0, range(2000), before=overtake)
    assert fenced.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    sink.commit(0, later)
    assert values(bootstrap, topic) == list(range(2000))


def _is_over(bootstrap: str, message: TaskMessage) -> bool:
    assert message.transaction is not None
    with cluster_at(bootstrap) as cluster:
        states = {found.transactional_id: found.state for found in list_transactions(cluster)}
    return states[message.transaction.transactional_id] == "CompleteAbort"


def test_a_batch_that_takes_too_long_fails_whole_and_can_be_written_again() -> None:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}) as broker:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap, 3)
        slow = Sink(bootstrap, topic, kafka__transaction__timeout__ms=100)
        messages = [slow.write(0, task, range(task * 100, task * 100 + 100)) for task in range(2)]

        for message in messages:
            eventually(partial(_is_over, bootstrap, message), "the broker aborts what takes too long")
        with pytest.raises(KafkaError, match=r"kafka\.transaction\.timeout\.ms=100, raise that"):
            slow.commit(0, messages)
        usual = Sink(bootstrap, topic)
        usual.commit(0, [usual.write(0, task, range(task * 100, task * 100 + 100)) for task in range(2)])
        assert values(bootstrap, topic) == list(range(200))

        job = [slow.write(None, 2, range(100)), usual.write(None, 3, range(100))]
        eventually(partial(_is_over, bootstrap, job[0]), "the broker aborts the first task's transaction")
        with pytest.raises(KafkaError, match=r"1 transactions could not be committed.*CompleteAbort"):
            usual.commit(None, job)
        assert values(bootstrap, topic) == list(range(200))
        close_idle()


def test_a_query_whose_record_was_deleted_does_not_guess(bootstrap: str, topic: str, sink: Sink) -> None:
    sink.commit(0, [sink.write(0, 0, range(100))])
    with cluster_at(bootstrap) as cluster:
        delete_groups(cluster, [f"{sink.app}-0"])
    with pytest.raises(InDoubtError, match="failOnDoubt=false"):
        sink.write(1, 0, range(100, 200))
    daring = Sink(bootstrap, topic, failOnDoubt="false")
    daring.commit(1, [daring.write(1, 0, range(100, 200))])
    sink.commit(2, [sink.write(2, 0, range(200, 300))])
    assert values(bootstrap, topic) == list(range(300))


def test_a_checkpoint_older_than_the_topic_is_refused(sink: Sink) -> None:
    for batch_id in range(3):
        sink.commit(batch_id, [sink.write(batch_id, 0, range(10))])
    with pytest.raises(InDoubtError, match=r"has batch 2 .* and this is batch 1: the checkpoint is older"):
        sink.write(1, 0, range(10))


def test_a_batch_that_is_there_with_other_rows_is_refused(bootstrap: str, topic: str, sink: Sink) -> None:
    sink.commit(0, [sink.write(0, 0, range(100))])
    with pytest.raises(InDoubtError, match=r"committed 100 rows .* it has 110.*restored checkpoint"):
        sink.commit(0, [sink.write(0, 0, range(110))])
    assert values(bootstrap, topic) == list(range(100))


def test_a_query_whose_topic_of_records_was_deleted_does_not_guess(bootstrap: str, topic: str) -> None:
    sink = Sink(bootstrap, topic, transactionalIdPrefix=topic)
    sink.commit(0, [sink.write(0, 0, range(100))])
    with cluster_at(bootstrap) as cluster:
        delete_topics(cluster, [sink.options.records_topic])
    with pytest.raises(InDoubtError, match=f"'{topic}-sink-records' was deleted"):
        sink.write(1, 0, range(100, 200))


def test_no_tool_sees_a_lag_of_the_sink(bootstrap: str, topic: str, sink: Sink) -> None:
    def lags() -> set[int | None]:
        groups = [argument for task in range(2) for argument in ("--group", f"{sink.app}-{task}")]
        described = json.loads(Commands(bootstrap).ok("consumer-groups", "--describe", *groups, "--json"))
        rows = [row for group in described for row in group["offsets"]]
        assert {row["topic"] for row in rows} == {"moldau-sink-records"}
        return {row["lag"] for row in rows}

    for batch_id in range(3):
        messages = [sink.write(batch_id, task, range(5000)) for task in range(2)]
        if batch_id:
            assert lags() == {0}  # while rows are written
        sink.commit(batch_id, messages)
        assert lags() == {0}


def test_a_topic_that_takes_only_small_batches_gets_small_batches(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2, configs={"max.message.bytes": 5000})
    sink = Sink(bootstrap, topic)
    sink.commit(0, [sink.write(0, 0, range(20_000))])
    assert values(bootstrap, topic) == list(range(20_000))


@pytest.mark.parametrize("rows", [range(100), range(0)])
def test_a_topic_that_is_not_there_is_created(bootstrap: str, rows: range) -> None:
    topic = f"made-by-the-sink-{len(rows)}"
    sink = Sink(bootstrap, topic)
    sink.commit(0, [sink.write(0, 0, rows)])
    sink.commit(1, [sink.write(1, 0, range(100, 200))])
    assert values(bootstrap, topic) == [*rows, *range(100, 200)]


def test_a_topic_that_brokers_do_not_create_is_told() -> None:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        sink = Sink(broker.bootstrap_servers, "not-there", kafka__max__block__ms=100)
        with pytest.raises(KafkaError, match="'not-there' does not exist: create it first"):
            sink.write(0, 0, range(10))


def test_a_topic_name_that_brokers_refuse_is_told_in_words(bootstrap: str) -> None:
    with pytest.raises(KafkaError, match=r"^topic 'my topic': .*its name is invalid: a name has up to 249 characters"):
        Sink(bootstrap, "my topic").write(0, 0, range(10))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_survive_a_restart_of_the_broker_once_each_and_in_order(tmp_path: Path, guarantee: str) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        bootstrap, port = broker.bootstrap_servers, broker.port
        topic = make_topic(bootstrap, 1)
        sink = Sink(bootstrap, topic, kafka__batch__size=4096, processing__guarantee=guarantee)
        restarted: list[Broker] = []

        def restart(start: int) -> None:
            if start == 5000:
                broker.stop()
                restarted.append(Broker(data_dir=tmp_path / "data", port=port))
                threading.Timer(0.3, restarted[0].start).start()

        if guarantee == "exactly_once":
            sink.commit(0, [sink.write(0, 0, range(10_000), before=restart)])
        else:

            def batches() -> Iterator[pa.RecordBatch]:
                for start in range(0, 10_000, 500):
                    restart(start)
                    values = pa.array([b"%d" % number for number in range(start, start + 500)], pa.binary())
                    yield pa.record_batch([values], ["value"])

            assert send_idempotently(sink.options, batches()) == 10_000
        found = [int(record.value or b"") for record in read(bootstrap, topic)]
        restarted[0].stop()
    close_idle()
    assert found == list(range(10_000))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read_by_librdkafka(bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    sink = Sink(bootstrap, topic, kafka__compression__type=codec, kafka__batch__size=20_000)
    sink.commit(0, [sink.write(0, 0, range(5000))])
    assert [int(record.value or b"") for record in read(bootstrap, topic)] == list(range(5000))

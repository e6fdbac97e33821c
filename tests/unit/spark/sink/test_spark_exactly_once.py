"""What a driver makes of its tasks' messages before it ends their transactions."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.errors import InDoubtError
from moldau.spark.sink.exactly_once import Job, Record, TaskMessage, _check_replay, _find_done
from moldau.spark.sink.transactions import Offset, Transaction
from moldau.spark.sink.write_options import WriteOptions

BATCH = 7
OPTIONS = WriteOptions.parse({"kafka.bootstrap.servers": "localhost:9092", "topic": "out"})


def wrote(task: int, rows: int = 10) -> TaskMessage:
    return TaskMessage(task, rows, Transaction(f"app-{task}", task, 0))


def had(task: int, rows: int = 10, *, recorded: int = 10, tasks: int | None = None) -> TaskMessage:
    return TaskMessage(task, rows, done=Record(BATCH, recorded, tasks))


def check(*messages: TaskMessage, fail_on_doubt: bool = True) -> None:
    _check_replay(messages[0].done, messages, fail_on_doubt=fail_on_doubt)


def test_a_record_goes_through_the_metadata_of_an_offset() -> None:
    for record in (Record(8, 100), Record(0, 0, tasks=4)):
        assert Record.from_offset(Offset(0, record.to_text())) == record


def test_the_latest_record_is_that_of_its_own_topic_or_of_those_where_records_once_were() -> None:
    assert Record.latest({}, "records") is None
    once = {"a": Offset(3, '{"rows": 1}'), "b": Offset(9, '{"rows": 2, "tasks": 1}')}
    assert Record.latest(once, "records") == Record(8, 2, 1)
    assert Record.latest({**once, "records": Offset(0, Record(4, 7).to_text())}, "records") == Record(4, 7)


def test_who_writes_a_batch_has_its_topic_in_the_name() -> None:
    def app(**given: str) -> str:
        options = {"kafka.bootstrap.servers": "localhost:9092", "txnVersion": "0", "txnAppId": "job"} | given
        return Job.of_write(WriteOptions.parse(options)).app

    assert app(topic="a") == "moldau-job:a"
    assert len({app(), app(topic="a"), app(topic="b"), app(topic="a", txnAppId="b")}) == 4


@pytest.mark.parametrize("metadata", ["", "{}", "null", "[1]", '{"rows": "x"}', "not json"])
def test_an_offset_of_somebody_else_is_no_record(metadata: str) -> None:
    with pytest.raises(InDoubtError, match="not a record of this sink"):
        Record.from_offset(Offset(3, metadata))


def test_messages_go_through_pickle() -> None:
    for message in (wrote(3), had(0, tasks=2), TaskMessage(1)):
        assert pickle.loads(pickle.dumps(message)) == message


def test_a_batch_written_for_the_first_time_is_committed() -> None:
    check(wrote(0), wrote(1), TaskMessage(2))


def test_a_batch_that_is_there_changes_nothing() -> None:
    check(had(0, tasks=3), had(1), TaskMessage(2))


def test_a_batch_of_which_some_is_missing_is_completed() -> None:
    check(had(0, tasks=3), wrote(1), had(2))


def test_a_batch_that_falls_into_other_tasks_is_in_doubt() -> None:
    with pytest.raises(InDoubtError, match=r"written by 4 tasks.*now has 2 tasks"):
        check(had(0, tasks=4), had(1))


@pytest.mark.parametrize("other", [wrote(1), had(1)])
def test_a_batch_with_other_rows_is_in_doubt_whether_or_not_some_are_missing(other: TaskMessage) -> None:
    with pytest.raises(InDoubtError, match=r"committed 10 rows.*it has 11"):
        check(had(0, rows=11, tasks=2), other)


def test_tasks_that_are_done_without_the_first_are_in_doubt() -> None:
    with pytest.raises(InDoubtError, match="record of task 0 is gone"):
        check(wrote(0), had(1))


def test_who_asks_for_it_goes_on_in_doubt_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check(wrote(0), had(1), fail_on_doubt=False)
    check(had(0, tasks=4), wrote(1), fail_on_doubt=False)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "offsets",
    [
        {"out": Offset(4, '{"rows": 5, "tasks": 1}')},  # where records once were; the topic with later ones is gone
        {OPTIONS.records_topic: Offset(0, Record(3, 5, 1).to_text())},  # restored from a copy
    ],
)
def test_a_record_from_before_the_last_batch_proves_nothing(offsets: dict[str, Offset]) -> None:
    transactions: Any = SimpleNamespace(read_records=lambda group: offsets)
    with pytest.raises(InDoubtError, match=r"is of batch 3, and the records in between are gone"):
        _find_done(transactions, Job.of_query(OPTIONS, "q", 10), 0, OPTIONS)
    assert _find_done(transactions, Job.of_query(OPTIONS, "q", 4), 0, OPTIONS) is None
    assert _find_done(transactions, Job("app", 10), 0, OPTIONS) is None  # versions may skip numbers

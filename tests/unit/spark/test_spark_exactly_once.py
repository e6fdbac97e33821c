"""What a driver makes of its tasks' messages before it ends their transactions."""

from __future__ import annotations

import pickle

import pytest

from moldau.errors import InDoubtError
from moldau.spark.exactly_once import Record, TaskMessage, _check_replay
from moldau.spark.transactions import Offset, Transaction

BATCH = 7


def wrote(task: int, rows: int = 10) -> TaskMessage:
    return TaskMessage(task, rows, Transaction(f"app-{task}", task, 0))


def had(task: int, rows: int = 10, *, recorded: int = 10, tasks: int | None = None) -> TaskMessage:
    return TaskMessage(task, rows, done=Record(BATCH + 1, recorded, tasks))


def check(*messages: TaskMessage, fail_on_doubt: bool = True) -> None:
    _check_replay(messages[0].done, messages, fail_on_doubt=fail_on_doubt)


def test_a_record_goes_through_an_offset_and_its_metadata() -> None:
    for record in (Record(8, 100), Record(1, 0, tasks=4)):
        assert Record.from_offset(record.to_offset()) == record


@pytest.mark.parametrize("metadata", ["", "{}", "null", "[1]", '{"rows": "x"}', "not json"])
def test_an_offset_of_somebody_else_is_no_record(metadata: str) -> None:
    with pytest.raises(InDoubtError, match="no record of this sink"):
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
    with pytest.raises(InDoubtError, match=r"written by 4 tasks.*falls into 2"):
        check(had(0, tasks=4), had(1))


def test_a_batch_with_other_rows_is_in_doubt_while_some_are_missing() -> None:
    with pytest.raises(InDoubtError, match=r"committed 10 rows.*it has 11"):
        check(had(0, rows=11, tasks=2), wrote(1))
    check(had(0, rows=11, tasks=2), had(1))


def test_tasks_that_are_done_without_the_first_are_in_doubt() -> None:
    with pytest.raises(InDoubtError, match="record of task 0 is gone"):
        check(wrote(0), had(1))


def test_who_asks_for_it_goes_on_in_doubt_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check(wrote(0), had(1), fail_on_doubt=False)
    check(had(0, tasks=4), wrote(1), fail_on_doubt=False)
    assert len(caplog.records) == 2

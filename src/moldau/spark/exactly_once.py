"""Exactly once: tasks write, the driver ends their transactions, a replayed batch changes nothing.

Spark computes a micro-batch, calls the sink's commit, and only then notes in its checkpoint that the batch is done.
Killed in between, it computes the batch again. So what a batch wrote has to appear whole, and who writes it again has
to find out that it is there.

**Who writes what.** Every task of a query has a transactional id, and a consumer group, of the same name:
`<prefix>-<query id>-<task>`. In the group lies the task's *record*: the number of the batch after the last one whose
rows it committed, as an offset, and beside it how many rows these were. (One group per task, since brokers take an
offset only for a partition that exists, and there may be more tasks than partitions.)

    task     1  InitProducerId: whoever had the id before is shut out, what they left open is aborted
             2  OffsetFetch: the record. It says that this batch is done: write nothing. Otherwise:
             3  rows, in a transaction; then, but for task 0, the record in the same transaction, which is left open
    driver   4  the record of task 0 in the transaction of task 0: the batch, its rows, and the number of tasks
             5  EndTxn of task 0: this decides the batch
             6  EndTxn of all others

Transactions end one by one, so the driver may die having ended some. Task 0 goes first: if any rows of a batch are
committed, those of task 0 are, and its record says how many tasks the batch had. Only the driver knows that number,
therefore it writes this record. A task other than 0 without rows does nothing: it has nothing to lose or to double.
There is always a task 0: to a batch without any, Spark gives one without rows.

**Where it can end**, and what becomes of the same batch when the query is started again:

    | dies                          | transactions are           | the batch, computed again                    |
    |-------------------------------|----------------------------|----------------------------------------------|
    | a task, anywhere              | its own: open              | 1 aborts it, Spark's next attempt writes     |
    | the driver, before 5          | open, nothing can be seen  | 1 aborts all, all write                      |
    | the driver, between 5 and 6   | some committed, some open  | committed: 2 says done; open: 1, then write  |
    | the driver, after 6           | committed                  | 2 says done everywhere, nothing is written   |
    | the answer to 5 or 6          | open or committed          | (asked again: ended twice is ended once)     |
    | a coordinator, anywhere       | as its log says            | (asked again until there is one)             |
    | nobody, but it takes too long | aborted by coordinators    | 5 or 6 was refused, the query failed; then 1 |
    | all of it, for good           | aborted when they time out | (there is none)                              |

So no transaction hangs: the next attempt of its task, the driver's abort or its time-out ends it. An attempt that lives
on though Spark gave it up cannot write: the next one has raised the epoch in 1.

**What a replay must keep.** A batch of which some transactions were committed and others were not is completed by its
tasks, so it has to fall into the same tasks with the same rows. Spark's sources and shuffles give that; a query with
`rand()` does not, nor does one with other settings. The number of tasks, and the rows of every task that is done,
are compared; what does not fit is an `InDoubtError`, before any more is committed.

**When the record is gone.** Groups lose their offsets a week after the last commit (offsets.retention.minutes), or
when they or the topic are deleted. A stream that is past its first batch and finds no record cannot know whether the
batch is there: an `InDoubtError` again, and `failOnDoubt=false` writes it.

Batch writes have no replay. Their transactions are ended together in the same way, without records, once all are seen
to be open still: in a long job the first ones time out while the last ones are written. With `txnAppId`
and `txnVersion` they have records, and a version that is not newer than the last changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from moldau.client.cluster import Cluster
from moldau.client.transactions import TransactionDescription, describe_transactions, fence_producer
from moldau.errors import ErrorCode, InDoubtError, KafkaError
from moldau.spark.connections import borrowed
from moldau.spark.transactions import Offset, Transaction, Transactions
from moldau.spark.write_options import WriteOptions
from moldau.wire.constants import GROUPS_TOPIC

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER = logging.getLogger(__name__)

# Where rows choose their topics, the record is kept under one that every cluster has.
_RECORD_TOPIC = GROUPS_TOPIC
_ON_WITHOUT_PROOF = (
    "To go on without proof, at the risk of rows that are there twice, start once with failOnDoubt=false."
)

RowIterator = Iterator["pa.RecordBatch"]


class Record(NamedTuple):
    next_batch: int
    rows: int
    tasks: int | None = None  # of the whole batch; only task 0's record says

    def to_offset(self) -> Offset:
        words = {"rows": self.rows} | ({} if self.tasks is None else {"tasks": self.tasks})
        return Offset(self.next_batch, json.dumps(words))

    @classmethod
    def from_offset(cls, offset: Offset) -> Record:
        try:
            words = json.loads(offset.metadata)
            return cls(offset.offset, int(words["rows"]), words.get("tasks"))
        except (ValueError, KeyError, TypeError) as error:
            raise InDoubtError(
                f"the offset {offset} in the sink's group is no record of this sink: let nobody else commit there"
            ) from error


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    task: int
    rows: int = 0
    transaction: Transaction | None = None  # left open for the driver to end
    done: Record | None = None  # the batch was there already: nothing was written

    @property
    def app(self) -> str | None:
        """Whose task it is, as far as its transaction tells."""
        return None if self.transaction is None else self.transaction.transactional_id.removesuffix(f"-{self.task}")


class Job(NamedTuple):
    """A batch of a query, or a write. `batch_id` is None where it is never written again: then there are no records."""

    app: str
    batch_id: int | None
    is_stream: bool = False

    def transactional_id(self, task: int) -> str:
        return _transactional_id(self.app, task)


def _transactional_id(app: str, task: int) -> str:
    return f"{app}-{task}"


def write_task(
    job: Job,
    task: int,
    options: WriteOptions,
    rows: RowIterator,
    send: Callable[[Transactions, Transaction, RowIterator], int],
) -> TaskMessage:
    """Steps 1 to 3. `send` writes rows in a transaction, all acknowledged when it returns, and counts them."""
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None and (task or job.batch_id is None):
        return TaskMessage(task)
    rows = rows if first is None else chain([first], rows)
    with borrowed(options.client) as cluster:
        transactions = Transactions(cluster)
        transaction = transactions.begin(job.transactional_id(task), options.transaction_timeout_ms)
        done = _find_done(transactions, job, task, fail_on_doubt=options.fail_on_doubt)
        if done is not None:
            return TaskMessage(task, sum(batch.num_rows for batch in rows), done=done)
        try:
            count = send(transactions, transaction, rows)
            if task and job.batch_id is not None:
                record = Record(job.batch_id + 1, count)
                transactions.write_offset(transaction, options.topic or _RECORD_TOPIC, record.to_offset())
        except BaseException:
            with suppress(KafkaError):  # whatever became of it, the first error is the one to tell
                transactions.end([transaction], commit=False)
            raise
    return TaskMessage(task, count, transaction)


def _find_done(transactions: Transactions, job: Job, task: int, *, fail_on_doubt: bool) -> Record | None:
    """The task's record, if it says that the batch is done."""
    if job.batch_id is None:
        return None
    group = job.transactional_id(task)
    offset = transactions.read_offset(group)
    record = None if offset is None else Record.from_offset(offset)
    wanted = job.batch_id + 1
    if job.is_stream and record is None and task == 0 and job.batch_id > 0:
        _doubt(
            f"group '{group}' has no record of the batches before batch {job.batch_id}: this one may be in the topic "
            "already. The group or the topic was deleted, or nothing was written for offsets.retention.minutes, or "
            f"the query did not write exactly_once before. {_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )
    if job.is_stream and record is not None and record.next_batch > wanted:
        _doubt(
            f"the topic holds batch {record.next_batch - 1} of this query, but Spark is at batch {job.batch_id}: the "
            "checkpoint is older than the topic. Use the checkpoint that wrote it, or a new one. "
            f"{_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )
        return None
    return record if record is not None and record.next_batch >= wanted else None


def commit_tasks(
    cluster: Cluster, batch_id: int | None, options: WriteOptions, messages: Sequence[TaskMessage]
) -> None:
    """Steps 4 to 6."""
    transactions = Transactions(cluster)
    rest = [message for message in messages if message.transaction is not None]
    if batch_id is not None and messages:
        first = next(message for message in messages if message.task == 0)
        done = first.done
        if done is not None and done.next_batch > batch_id + 1:  # an old version: also what other tasks wrote is old
            abort_tasks(cluster, messages)
            return
        _check_replay(done, messages, fail_on_doubt=options.fail_on_doubt)
        if first.transaction is not None:
            record = Record(batch_id + 1, first.rows, len(messages))
            try:
                transactions.write_offset(first.transaction, options.topic or _RECORD_TOPIC, record.to_offset())
            except KafkaError as error:
                raise _refusal({first.transaction: error}, options) from error
            _end(transactions, [first], options)
            rest.remove(first)
    elif batch_id is None:
        _check_open(cluster, rest, options)
    _end(transactions, rest, options)


def _check_replay(done: Record | None, messages: Sequence[TaskMessage], *, fail_on_doubt: bool) -> None:
    """Whether what tasks wrote now and what others had committed before are parts of the same whole."""
    settled = [message for message in messages if message.done is not None]
    if not settled:
        return
    if done is None:
        _doubt(
            f"task {settled[0].task} has committed its rows of this batch, but the record of task 0 is gone: "
            f"let nobody delete the sink's groups. {_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )
        return
    if done.tasks != len(messages):
        _doubt(
            f"this batch was written by {done.tasks} tasks, and some of its rows may be missing; computed again it "
            f"falls into {len(messages)} tasks, so they cannot be told. Start the query with the settings it had "
            f"(minPartitions, shuffle partitions, cores). {_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )
    differing = [message for message in settled if message.done and message.rows != message.done.rows]
    if differing and any(message.transaction for message in messages):
        one = differing[0]
        recorded = one.done.rows if one.done else 0
        _doubt(
            f"task {one.task} committed {recorded} rows of this batch, and computed again it has {one.rows}, while "
            "other tasks' rows are missing: the query does not give the same rows twice (rand(), a changed "
            f"query or source), so the missing ones cannot be told. {_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )


def _check_open(cluster: Cluster, messages: Sequence[TaskMessage], options: WriteOptions) -> None:
    opened = {one.transactional_id: one for message in messages if (one := message.transaction) is not None}
    ended = {
        opened[transactional_id]: KafkaError(ErrorCode.INVALID_TXN_STATE, f"its state is {found.state}")
        for transactional_id, found in _described(cluster, list(opened)).items()
        if found.state != "Ongoing"
    }
    if ended:
        raise _refusal(ended, options)


def _described(cluster: Cluster, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
    """Of those that the broker tells about; it does so since Kafka 3.0."""
    try:
        described = describe_transactions(cluster, transactional_ids)
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    return {name: found for name, found in described.items() if not isinstance(found, KafkaError)}


def _end(transactions: Transactions, messages: Sequence[TaskMessage], options: WriteOptions) -> None:
    opened = [message.transaction for message in messages if message.transaction is not None]
    refused = transactions.end(opened, commit=True)
    if refused:
        raise _refusal(refused, options)


def _refusal(refused: Mapping[Transaction, KafkaError], options: WriteOptions) -> KafkaError:
    transaction, error = next(iter(refused.items()))
    return KafkaError(
        error.code,
        f"{len(refused)} transactions could not be committed, among them '{transaction.transactional_id}' "
        f"({error.message}). If it took longer than kafka.transaction.timeout.ms={options.transaction_timeout_ms}, "
        "raise it (and the broker's transaction.max.timeout.ms) or write smaller batches; if a second attempt of the "
        "task took its place, set spark.speculation=false. A query or job started again writes what is missing.",
    )


def abort_tasks(cluster: Cluster, messages: Sequence[TaskMessage]) -> None:
    """What was committed stays; that it was refused to abort it is no news."""
    opened = [message.transaction for message in messages if message.transaction is not None]
    Transactions(cluster).end(opened, commit=False)


def abort_unfinished(cluster: Cluster, app: str, tasks: Sequence[int]) -> None:
    """Tasks that were killed could not abort theirs: without this, readers would wait until it times out."""
    ids = [_transactional_id(app, task) for task in tasks]
    for transactional_id, found in _described(cluster, ids).items():
        if found.state == "Ongoing":
            fence_producer(cluster, transactional_id)


def _doubt(message: str, fail_on_doubt: bool) -> None:
    if fail_on_doubt:
        raise InDoubtError(message)
    _LOGGER.warning("%s", message)

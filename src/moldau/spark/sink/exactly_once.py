"""Exactly once: tasks write, the driver commits their transactions, and a replayed batch changes nothing.

Spark computes a micro-batch, calls the sink's commit, and only then records in its checkpoint that the batch is done.
If it is killed in between, it computes the batch again. A batch must therefore become visible as a whole, and whoever
writes it again must find out that it is there.

**Who writes what.** Each task of a query has a transactional id and a consumer group of the same name:
`<prefix>-<query id>-<task>`. The group holds the task's *record*: the last batch whose rows it committed, and the
number of rows. The record is the metadata of an offset that is committed in the same transaction as the rows. The
offset is 0, in a topic that stays empty, `<prefix>-sink-records`, so tools that compute lag find none. (There is one
group per task, because brokers accept offsets only for partitions that exist, and there may be more tasks than
partitions.)

    task     1  InitProducerId: fences the previous owner of the id and aborts its open transaction
             2  OffsetFetch: reads the record. If it says that this batch is done, write nothing. Otherwise:
             3  write rows in a transaction and, except for task 0, the record in the same transaction; leave it open
    driver   4  write the record of task 0 in the transaction of task 0: the batch, its rows, and the number of tasks
             5  EndTxn of task 0: this decides the batch
             6  EndTxn of all others

Transactions are committed one by one, so the driver may die after some of them. Task 0 goes first: if any rows of a
batch are committed, those of task 0 are, and its record says how many tasks the batch had. Only the driver knows that
number, so the driver writes this record. A task other than 0 without rows does nothing: it has nothing to lose or
duplicate. There is always a task 0: if a batch has no tasks, Spark adds one without rows.

**Failures**, and what happens to the same batch when the query is restarted:

    | fails                         | transactions are           | the batch, computed again                    |
    |-------------------------------|----------------------------|----------------------------------------------|
    | a task, anywhere              | its own: open              | 1 aborts it, Spark's next attempt writes     |
    | the driver, before 5          | open, nothing is visible   | 1 aborts all, all write                      |
    | the driver, between 5 and 6   | some committed, some open  | committed: 2 says done; open: 1, then write  |
    | the driver, after 6           | committed                  | 2 says done everywhere, nothing is written   |
    | the response to 5 or 6        | open or committed          | (sent again: EndTxn is idempotent)           |
    | a coordinator, anywhere       | as its log says            | (sent again until there is one)              |
    | nothing, but it takes too long| aborted by coordinators    | 5 or 6 was refused, the query failed; then 1 |
    | everything, for good          | aborted when they time out | (there is none)                              |

So no transaction stays open: the next attempt of its task, the driver's abort or its timeout ends it. An attempt that
keeps running after Spark gave it up cannot write, because the next attempt raised the epoch in step 1.

**What a replay must keep.** A batch of which some transactions were committed is completed by the other tasks, so it
must be divided into the same tasks with the same rows. Spark's sources and shuffles guarantee that. A query with
`rand()` does not, nor does one with different settings. The number of tasks, and the rows of every task that is done,
are compared; a mismatch is an `InDoubtError`, before anything more is committed. That also holds if nothing is missing:
a checkpoint that was restored from a copy may divide its next batch differently, and those rows would be lost.

**When the record is gone.** Groups lose their offsets a week after the last commit (offsets.retention.minutes), or
when they or the topic of the records are deleted. If a batch other than the first finds no record, it may already be in
the topic: an `InDoubtError`, and `failOnDoubt=false` writes it. The same holds if the record is of a later batch, which
means that the checkpoint is older than the topic. Only the record of task 0 is checked for these. It is part of every
batch, while the records of other tasks may date from before somebody continued with failOnDoubt=false.

**Batch writes** with `txnAppId` and `txnVersion`, and therefore `foreachBatch`, work in the same way: the version is
the batch, and `<prefix>-<app id>:<topic>-<task>` the transactional id. If the driver dies while it commits, some of the
batch is visible, and writing the same version again completes it.

Batch writes without these options have no records: nobody could tell a second run from a new write. The driver checks
that all transactions are still open before it commits the first one, because in a long job the first ones may time out
while the last ones are written. Then it commits them together, within a few milliseconds. If it dies during that time,
the rows of some tasks are visible; the others are aborted when they time out. A write of one task is one transaction,
and always all or nothing.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from moldau.client.cluster import ClusterClient
from moldau.client.transactions import TransactionDescription, describe_transactions, fence_producer
from moldau.errors import ErrorCode, InDoubtError, KafkaError
from moldau.spark.connections import borrowed
from moldau.spark.sink.transactions import Offset, Transaction, Transactions
from moldau.spark.sink.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_WRITE_WITHOUT_PROOF = "To write it anyway, at the risk of duplicate rows, start once with failOnDoubt=false."
_CONTINUE_WITHOUT_PROOF = (
    "To keep what is in the topic and continue, at the risk of missing or duplicate rows, start once with "
    "failOnDoubt=false."
)
_COMPLETED = "Restart the query, or the job with the same txnVersion, to write what is missing."
_NOTHING_WRITTEN = "Nothing was committed: you can run the job again."
_PARTLY_WRITTEN = (
    "Rows of other tasks are in the topic, and running the job again would duplicate them. With txnAppId and "
    "txnVersion it would complete the batch instead."
)

RowIterator = Iterator["pa.RecordBatch"]


class Record(NamedTuple):
    batch: int  # the last one that was committed
    rows: int
    tasks: int | None = None  # of the whole batch; only task 0's record says

    def to_text(self) -> str:
        return json.dumps({name: value for name, value in self._asdict().items() if value is not None})

    @classmethod
    def from_offset(cls, offset: Offset) -> Record:
        """Earlier versions stored the number after the batch as the offset."""
        try:
            words = json.loads(offset.metadata)
            return cls(int(words.get("batch", offset.offset - 1)), int(words["rows"]), words.get("tasks"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InDoubtError(
                f"the offset {offset} in the sink's group is not a record of this sink: do not commit to this group"
            ) from error

    @classmethod
    def latest(cls, offsets: Mapping[str, Offset], topic: str) -> Record | None:
        """The record among a group's offsets by topic. Earlier versions used other topics."""
        if topic in offsets:
            return cls.from_offset(offsets[topic])
        return max(map(cls.from_offset, offsets.values()), key=attrgetter("batch"), default=None)


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """What a task reports to the driver."""

    task: int
    rows: int = 0
    transaction: Transaction | None = None  # left open for the driver to end
    done: Record | None = None  # the batch was there already: nothing was written

    @property
    def app(self) -> str | None:
        """The query or job of the task, known from its transaction."""
        return None if self.transaction is None else self.transaction.transactional_id.removesuffix(f"-{self.task}")


class Job(NamedTuple):
    """A batch of a query, or a write. `batch_id` is None where it is never written again: then there are no records."""

    app: str
    batch_id: int | None
    is_query: bool = False  # its batches have consecutive numbers, and each leaves a record

    @classmethod
    def of_query(cls, options: WriteOptions, query_id: str, batch_id: int) -> Job:
        return cls(f"{options.id_prefix}-{query_id}", batch_id, is_query=True)

    @classmethod
    def of_write(cls, options: WriteOptions) -> Job:
        """The topic is part of who writes: a colon, which no topic's name has, keeps the two apart."""
        app_id = uuid.uuid4() if options.app_id is None else f"{options.app_id}:{options.topic or ''}"
        return cls(f"{options.id_prefix}-{app_id}", options.version)

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
        done = _find_done(transactions, job, task, options)
        if done is not None:
            return TaskMessage(task, sum(batch.num_rows for batch in rows), done=done)
        try:
            count = send(transactions, transaction, rows)
            if task and job.batch_id is not None:
                transactions.write_record(transaction, options.records_topic, Record(job.batch_id, count).to_text())
        except BaseException:
            with suppress(KafkaError):  # report the first error, whatever happens to the transaction
                transactions.end([transaction], commit=False)
            raise
    return TaskMessage(task, count, transaction)


def _find_done(transactions: Transactions, job: Job, task: int, options: WriteOptions) -> Record | None:
    """The task's record, if it says that the batch is done."""
    if job.batch_id is None:
        return None
    group = job.transactional_id(task)
    record = Record.latest(transactions.read_records(group), options.records_topic)
    if task == 0 and record is None and job.batch_id > 0:
        _doubt(
            f"batch {job.batch_id} may be in the topic already: group '{group}' has no record of earlier "
            "batches. If this sink has never written for this query or txnAppId (to this topic, exactly_once), it is "
            f"safe to write. Otherwise the record is gone: the group or the topic '{options.records_topic}' was "
            f"deleted, or nothing was written for offsets.retention.minutes. {_WRITE_WITHOUT_PROOF}",
            options.fail_on_doubt,
        )
    if task == 0 and record is not None and record.batch > job.batch_id:
        _doubt(
            f"the topic has batch {record.batch} of this query or txnAppId, and this is batch {job.batch_id}: the "
            "checkpoint is older than the topic, or txnVersion did not grow. Use the checkpoint that wrote it, a new "
            f"checkpoint, or an unused version. {_WRITE_WITHOUT_PROOF}",
            options.fail_on_doubt,
        )
    if task == 0 and record is not None and job.is_query and record.batch < job.batch_id - 1:
        _doubt(
            f"batch {job.batch_id} may be in the topic already: the record of group '{group}' is of batch "
            f"{record.batch}, and the records in between are gone. The topic '{options.records_topic}' or the "
            "group's offsets were deleted or restored from a copy, or batches were written with another setting. "
            f"{_WRITE_WITHOUT_PROOF}",
            options.fail_on_doubt,
        )
    return record if record is not None and record.batch == job.batch_id else None


def commit_tasks(
    cluster: ClusterClient, batch_id: int | None, options: WriteOptions, messages: Sequence[TaskMessage]
) -> None:
    """Steps 4 to 6."""
    transactions = Transactions(cluster)
    rest = [message for message in messages if message.transaction is not None]
    if batch_id is not None and messages:
        first = next(message for message in messages if message.task == 0)
        _check_replay(first.done, messages, fail_on_doubt=options.fail_on_doubt)
        if first.transaction is not None:
            record = Record(batch_id, first.rows, len(messages))
            try:
                transactions.write_record(first.transaction, options.records_topic, record.to_text())
            except KafkaError as error:
                raise _refusal({first.transaction: error}, options, _COMPLETED) from error
            _end(transactions, [first], options, _COMPLETED)
            rest.remove(first)
    elif batch_id is None:
        _check_open(cluster, rest, options)
    _end(transactions, rest, options, _PARTLY_WRITTEN if batch_id is None else _COMPLETED)


def _check_replay(done: Record | None, messages: Sequence[TaskMessage], *, fail_on_doubt: bool) -> None:
    """Check that what tasks wrote now and what was committed before belong to the same batch."""
    settled = [message for message in messages if message.done is not None]
    if not settled:
        return
    if done is None:
        _doubt(
            f"task {settled[0].task} has committed its rows of this batch, but the record of task 0 is gone: "
            f"do not delete the sink's groups. {_CONTINUE_WITHOUT_PROOF}",
            fail_on_doubt,
        )
        return
    if done.tasks != len(messages):
        _doubt(
            f"this batch was written by {done.tasks} tasks, and some of its rows may be missing. It now has "
            f"{len(messages)} tasks, so the missing ones are unknown. Start it with its previous settings "
            f"(minPartitions, shuffle partitions, cores). {_CONTINUE_WITHOUT_PROOF}",
            fail_on_doubt,
        )
    differing = next((one for one in settled if one.done is not None and one.rows != one.done.rows), None)
    if differing is not None and differing.done is not None:
        _doubt(
            f"task {differing.task} committed {differing.done.rows} rows of this batch, and now it has "
            f"{differing.rows}. Either the query is not deterministic (rand(), a changed query or source), or these "
            "are different rows, because of a restored checkpoint or a txnVersion that was used before. "
            f"{_CONTINUE_WITHOUT_PROOF}",
            fail_on_doubt,
        )


def _check_open(cluster: ClusterClient, messages: Sequence[TaskMessage], options: WriteOptions) -> None:
    opened = {one.transactional_id: one for message in messages if (one := message.transaction) is not None}
    ended = {
        opened[transactional_id]: KafkaError(ErrorCode.INVALID_TXN_STATE, f"its state is {found.state}")
        for transactional_id, found in _described(cluster, list(opened)).items()
        if found.state != "Ongoing"
    }
    if ended:
        raise _refusal(ended, options, _NOTHING_WRITTEN)


def _described(cluster: ClusterClient, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
    """The transactions that the broker can describe; brokers support that since Kafka 3.0."""
    try:
        described = describe_transactions(cluster, transactional_ids)
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    return {name: found for name, found in described.items() if not isinstance(found, KafkaError)}


def _end(transactions: Transactions, messages: Sequence[TaskMessage], options: WriteOptions, if_refused: str) -> None:
    opened = [message.transaction for message in messages if message.transaction is not None]
    refused = transactions.end(opened, commit=True)
    if refused:
        raise _refusal(refused, options, if_refused)


def _refusal(refused: Mapping[Transaction, KafkaError], options: WriteOptions, what_now: str) -> KafkaError:
    transaction, error = next(iter(refused.items()))
    return KafkaError(
        error.code,
        f"{len(refused)} transactions could not be committed, among them '{transaction.transactional_id}' "
        f"({error.message}). If it took longer than kafka.transaction.timeout.ms={options.transaction_timeout_ms}, "
        "raise that (and the broker's transaction.max.timeout.ms) or write smaller batches. If a second attempt of the "
        f"task replaced it, set spark.speculation=false. {what_now}",
    )


def abort_tasks(cluster: ClusterClient, messages: Sequence[TaskMessage]) -> None:
    """Committed transactions stay committed: their abort is refused, which is fine."""
    opened = [message.transaction for message in messages if message.transaction is not None]
    Transactions(cluster).end(opened, commit=False)


def abort_unfinished(cluster: ClusterClient, app: str, tasks: Sequence[int]) -> None:
    """Abort the transactions of killed tasks; otherwise consumers would wait until they time out."""
    ids = [_transactional_id(app, task) for task in tasks]
    for transactional_id, found in _described(cluster, ids).items():
        if found.state == "Ongoing":
            fence_producer(cluster, transactional_id)


def _doubt(message: str, fail_on_doubt: bool) -> None:
    if fail_on_doubt:
        raise InDoubtError(message)
    logger.warning("%s", message)

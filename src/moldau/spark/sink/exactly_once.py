"""Exactly once: tasks write, the driver ends their transactions, a replayed batch changes nothing.

Spark computes a micro-batch, calls the sink's commit, and only then notes in its checkpoint that the batch is done.
Killed in between, it computes the batch again. So what a batch wrote has to appear whole, and who writes it again has
to find out that it is there.

**Who writes what.** Every task of a query has a transactional id, and a consumer group, of the same name:
`<prefix>-<query id>-<task>`. In the group lies the task's *record*: the last batch whose rows it committed, and how
many rows these were. It is the metadata of an offset that is committed in the transaction of the rows. The offset
itself is 0 in a topic that stays empty, `<prefix>-sink-records`, so a tool that computes lag finds none. (One group
per task, since brokers take an offset only for a partition that exists, and there may be more tasks than partitions.)

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
are compared; what does not fit is an `InDoubtError`, before any more is committed. So it is when nothing is missing:
a checkpoint that was restored from a copy may cut its next batch differently, and those rows would be lost.

**When the record is gone.** Groups lose their offsets a week after the last commit (offsets.retention.minutes), or
when they or the topic of the records are deleted. A batch other than the first that finds no record may be in the
topic already: an `InDoubtError` again, and `failOnDoubt=false` writes it. A record of a later batch says that the
checkpoint is older than the topic: the same. The record of task 0 alone is asked for both. It is part of every
batch, and what the other tasks have may be left from before somebody went on in doubt.

**Batch writes** with `txnAppId` and `txnVersion`, and by them `foreachBatch`, are no different: the version is the
batch, `<prefix>-<app id>:<topic>-<task>` the transactional id. The table holds: a driver that died while it ended
transactions leaves some of the batch, and the same version written again completes it.

Batch writes without these have no records: nobody could tell a second run from a new write. All transactions are seen
to be open before the first is ended, since in a long job the first ones time out while the last ones are written. Then
they are ended together, in a few milliseconds. A driver that dies in these leaves the rows of some tasks; those of the
others are aborted when they time out. A write of one task is one transaction, and all or nothing always.
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

_WRITE_WITHOUT_PROOF = (
    "To write it anyway, at the risk of rows that are there twice, start once with failOnDoubt=false."
)
_GO_ON_WITHOUT_PROOF = (
    "To go on, with what is in the topic and at the risk of missing or doubled rows, start once with failOnDoubt=false."
)
_COMPLETED = "Start the query again, or the job with the same txnVersion: it writes what is missing."
_NOTHING_WRITTEN = "Nothing was committed: the job can be started again."
_PARTLY_WRITTEN = (
    "Rows of other tasks are in the topic, and the job started again would write them twice. With txnAppId and "
    "txnVersion it would complete them."
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
        """Records once had the number after the batch as their offset."""
        try:
            words = json.loads(offset.metadata)
            return cls(int(words.get("batch", offset.offset - 1)), int(words["rows"]), words.get("tasks"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InDoubtError(
                f"the offset {offset} in the sink's group is no record of this sink: let nobody else commit there"
            ) from error

    @classmethod
    def latest(cls, offsets: Mapping[str, Offset], topic: str) -> Record | None:
        """Of a group's offsets by topic. Other topics are where records once were."""
        if topic in offsets:
            return cls.from_offset(offsets[topic])
        return max(map(cls.from_offset, offsets.values()), key=attrgetter("batch"), default=None)


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
            with suppress(KafkaError):  # whatever became of it, the first error is the one to tell
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
            f"batch {job.batch_id} may be in the topic already: group '{group}' has no record of the batches before "
            "it. Either this sink has not written for this query or txnAppId before (to this topic, exactly_once): "
            f"then it is safe to write. Or the record is gone: the group or the topic '{options.records_topic}' was "
            f"deleted, or nothing was written for offsets.retention.minutes. {_WRITE_WITHOUT_PROOF}",
            options.fail_on_doubt,
        )
    if task == 0 and record is not None and record.batch > job.batch_id:
        _doubt(
            f"the topic holds batch {record.batch} of this query or txnAppId, and this is batch {job.batch_id}: the "
            "checkpoint is older than the topic, or txnVersion does not grow. Use the checkpoint that wrote it, or a "
            f"new one, or a version that was not used. {_WRITE_WITHOUT_PROOF}",
            options.fail_on_doubt,
        )
    if task == 0 and record is not None and job.is_query and record.batch < job.batch_id - 1:
        _doubt(
            f"batch {job.batch_id} may be in the topic already: the record of group '{group}' is of batch "
            f"{record.batch}, and those of the batches between are gone. The topic '{options.records_topic}' or the "
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
    """Whether what tasks wrote now and what others had committed before are parts of the same whole."""
    settled = [message for message in messages if message.done is not None]
    if not settled:
        return
    if done is None:
        _doubt(
            f"task {settled[0].task} has committed its rows of this batch, but the record of task 0 is gone: "
            f"let nobody delete the sink's groups. {_GO_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )
        return
    if done.tasks != len(messages):
        _doubt(
            f"this batch was written by {done.tasks} tasks, and some of its rows may be missing; computed again it "
            f"falls into {len(messages)} tasks, so they cannot be told. Start it with the settings it had "
            f"(minPartitions, shuffle partitions, cores). {_GO_ON_WITHOUT_PROOF}",
            fail_on_doubt,
        )
    differing = next((one for one in settled if one.done is not None and one.rows != one.done.rows), None)
    if differing is not None and differing.done is not None:
        _doubt(
            f"task {differing.task} committed {differing.done.rows} rows of this batch, and computed again it has "
            f"{differing.rows}. Either the query does not give the same rows twice (rand(), a changed query or "
            "source), or these are other rows, by a restored checkpoint or a txnVersion that was used before. "
            f"{_GO_ON_WITHOUT_PROOF}",
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
    """Of those that the broker tells about; it does so since Kafka 3.0."""
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
        "raise it (and the broker's transaction.max.timeout.ms) or write smaller batches; if a second attempt of the "
        f"task took its place, set spark.speculation=false. {what_now}",
    )


def abort_tasks(cluster: ClusterClient, messages: Sequence[TaskMessage]) -> None:
    """What was committed stays; that it was refused to abort it is no news."""
    opened = [message.transaction for message in messages if message.transaction is not None]
    Transactions(cluster).end(opened, commit=False)


def abort_unfinished(cluster: ClusterClient, app: str, tasks: Sequence[int]) -> None:
    """Tasks that were killed could not abort theirs: without this, readers would wait until it times out."""
    ids = [_transactional_id(app, task) for task in tasks]
    for transactional_id, found in _described(cluster, ids).items():
        if found.state == "Ongoing":
            fence_producer(cluster, transactional_id)


def _doubt(message: str, fail_on_doubt: bool) -> None:
    if fail_on_doubt:
        raise InDoubtError(message)
    logger.warning("%s", message)

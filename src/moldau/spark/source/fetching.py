"""Reads a range of a partition as Arrow batches, with raw Fetch requests from a Spark task.

`read_range` takes a response, learns from its batches where the next one starts, lets a thread fetch that, and decodes
meanwhile; so at most two responses are in memory. `_Source` asks the partition's leader and returns records, or None if
there are none left before the end of the range: offsets may be missing there because of compaction or transaction
markers, which is no loss. Records that existed when the range was planned and are gone now (retention, deleted records
or topics, a truncated log) are a loss: an error, or a warning if the plan says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moldau.client.admin import list_offsets
from moldau.client.cluster import ClusterClient
from moldau.client.connection import Connection, raise_error, to_error
from moldau.errors import RETRIABLE, CorruptRecordError, DataLossError, ErrorCode, KafkaError
from moldau.spark.columns import batches
from moldau.spark.columns.decode import Decoder
from moldau.spark.columns.kernels import BASE_OFFSET, END, LAST_OFFSET, Bytes, Int64s
from moldau.spark.connections import borrowed
from moldau.spark.source.read_plan import OffsetRange, ReadPlan
from moldau.wire.apis import ApiKey
from moldau.wire.constants import EARLIEST, EARLIEST_LOCAL, LATEST, IsolationLevel
from moldau.wire.fetch import FetchPartitionResult, parse_fetch_response
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

logger = logging.getLogger(__name__)

# Before the size of records is known: a small range should not cost a large answer.
_FIRST_FETCH_BYTES = 1024 * 1024
# What is asked for beyond the estimate, since batches do not end where ranges do.
_SPARE_BYTES = 64 * 1024
# How long a broker may keep a fetch that finds nothing. Ranges end where records do, so this is rare.
_MAX_WAIT_MS = 500
# A topic that brokers do not know for so long is deleted, not just unknown to a broker that has lately started.
_GONE_AFTER_MS = 5_000
_TOPIC_ID_VERSION_MIN = 13

_RETRIED = (RETRIABLE - {ErrorCode.CORRUPT_MESSAGE}) | {  # what is corrupt on the broker's disk stays so
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.OFFSET_OUT_OF_RANGE,  # of a replica that lags; what is out of the log's range is lost
    ErrorCode.UNKNOWN_SERVER_ERROR,  # remote storage had an error, for example; Java's consumer retries too
}
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


def read_range(plan: ReadPlan, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The records of a range, in order, in Arrow batches of up to `batch_rows_max` rows."""
    if wanted.start >= wanted.end:
        return
    decoder = Decoder(wanted.topic, wanted.partition, plan.columns, plan.batch_rows_max)
    with (
        borrowed(plan.client) as cluster,
        ThreadPoolExecutor(1, "moldau-fetch") as thread,  # waits for its fetch at the end, which the source cuts short
        closing(_Source(cluster, plan, wanted)) as source,
    ):
        pending: Future[_Fetched | None] | None = thread.submit(source.fetch, wanted.start)
        while pending is not None:
            fetched = pending.result()
            if fetched is None:
                return
            try:
                table = _batches_from(fetched)
                source.learn(table)
                following = int(table[LAST_OFFSET, -1]) + 1
                pending = thread.submit(source.fetch, following) if following < wanted.end else None
                yield from _decoded(plan, wanted, decoder, fetched, table)
            except CorruptRecordError as error:
                raise CorruptRecordError(f"{wanted.topic}-{wanted.partition}: {error.message}") from error


class _Fetched(NamedTuple):
    position: int  # what was asked for; the first batch may begin before it
    records: Bytes
    aborted: Sequence[tuple[int, int]]


def _batches_from(fetched: _Fetched) -> Int64s:
    table = batches.index(fetched.records)
    if table.shape[1] == 0:
        raise CorruptRecordError(f"the broker answered with less than one batch at offset {fetched.position}")
    ends = table[LAST_OFFSET]
    if ends[-1] < fetched.position or (table[BASE_OFFSET] > ends).any() or (table[BASE_OFFSET, 1:] <= ends[:-1]).any():
        raise CorruptRecordError(f"the batches at offset {fetched.position} do not go forward")
    return table


def _decoded(
    plan: ReadPlan, wanted: OffsetRange, decoder: Decoder, fetched: _Fetched, table: Int64s
) -> Iterator[pa.RecordBatch]:
    if plan.check_crcs:
        batches.check_crcs(fetched.records, table)
    table = batches.visible(fetched.records, table, fetched.aborted, fetched.position, wanted.end)
    for plain in batches.plain(fetched.records, table):
        yield from decoder.decode(plain, fetched.position, wanted.end)


class _Source:
    """One partition at its leader, whoever that is. Used by one thread at a time."""

    def __init__(self, cluster: ClusterClient, plan: ReadPlan, wanted: OffsetRange) -> None:
        self._cluster = cluster
        self._plan = plan
        self._wanted = wanted
        self._leader: int | None = None
        self._topic_id = wanted.topic_id
        self._bytes_per_offset: float | None = None
        # One answer is decoded while the next is received; both buffers serve for the whole range.
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._turn = 0
        self._closed = Event()

    def close(self) -> None:
        """Do not retry: nobody waits for the current fetch."""
        self._closed.set()

    def learn(self, table: Int64s) -> None:
        """What records take, from batches that were fetched: the range's end needs no full answer."""
        offsets = int(table[LAST_OFFSET, -1] - table[BASE_OFFSET, 0]) + 1
        self._bytes_per_offset = int(table[END, -1]) / offsets

    def fetch(self, position: int) -> _Fetched | None:
        """Records at `position` or the first that are left behind it; None if there are none below the end."""
        self._turn ^= 1
        asked_at = time.monotonic()
        timeout_ms = self._plan.client.api_timeout_ms
        while position < self._wanted.end and not self._closed.is_set():
            waited_ms = (time.monotonic() - asked_at) * 1000
            try:
                result = self._ask(position)
                if isinstance(result.records, memoryview) and result.records:
                    return _Fetched(position, np.frombuffer(result.records, np.uint8), result.aborted or ())
                if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    position = self._behind_loss(position)
                elif self._readable(result) >= self._wanted.end and self._is_local(position):
                    return None
                elif waited_ms > timeout_ms:
                    position = self._give_up(position, result)
            except KafkaError as error:
                position = self._after(error, position, waited_ms)
            self._pause(self._plan.client.retry_backoff_ms)
        return None

    def _ask(self, position: int) -> FetchPartitionResult:
        connection = self._leader_connection()
        version = connection.version_of(ApiKey.FETCH)
        if version is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{connection.address} supports no known version of Fetch")
        if self._topic_id == ZERO_UUID:  # the broker is older than topic ids
            version = min(version, _TOPIC_ID_VERSION_MIN - 1)
        frame = connection.send_raw(ApiKey.FETCH, version, lambda schema: self._request(schema, position), self._buffer)
        response = parse_fetch_response(version, frame)
        raise_error(response.error_code)
        for _, _, results in response.topics:
            for result in results:
                if result.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise_error(result.error_code)
                if result.preferred_read_replica < 0:
                    return result
                self._leader = result.preferred_read_replica  # which has the records; this broker left them out
        # A broker whose quota is used up leaves everything out.
        self._pause(min(response.throttle_ms, self._plan.client.api_timeout_ms))
        return FetchPartitionResult(self._wanted.partition)

    def _request(self, schema: Schema, position: int) -> Any:
        size = self._bytes_wanted(position)
        partition = schema.FetchPartition(
            partition=self._wanted.partition,
            current_leader_epoch=-1,
            fetch_offset=position,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=size,
        )
        return schema.FetchRequest(
            replica_id=-1,
            max_wait=ms(_MAX_WAIT_MS),
            min_bytes=1,
            max_bytes=size,
            isolation_level=int(self._plan.isolation),
            session_id=0,
            session_epoch=-1,  # no session: one partition is named anew as quickly
            topics=(schema.FetchTopic(topic=self._wanted.topic, topic_id=self._topic_id, partitions=(partition,)),),
            forgotten_topics_data=(),
            rack_id="",
        )

    def _bytes_wanted(self, position: int) -> int:
        if self._bytes_per_offset is None:
            return min(_FIRST_FETCH_BYTES, self._plan.fetch_bytes_max)
        estimate = int((self._wanted.end - position) * self._bytes_per_offset) + _SPARE_BYTES
        return min(estimate, self._plan.fetch_bytes_max)

    def _buffer(self, size: int) -> memoryview:
        if len(self._buffers[self._turn]) < size:
            self._buffers[self._turn] = np.empty(size, np.uint8)
        return self._buffers[self._turn].data[:size]

    def _leader_connection(self) -> Connection:
        if self._leader is None:
            self._leader = self._find_leader()
        return self._cluster.broker(self._leader)

    def _find_leader(self) -> int:
        topic = self._cluster.metadata([self._wanted.topic]).topics[self._wanted.topic]
        raise_error(topic.error)
        if self._topic_id not in (ZERO_UUID, topic.topic_id):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, "it was deleted and created again")
        self._topic_id = topic.topic_id
        for partition in topic.partitions:
            if partition.partition == self._wanted.partition:
                if partition.leader < 0:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader at the moment")
                return partition.leader
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has no such partition")

    def _pause(self, pause_ms: int) -> None:
        self._closed.wait(pause_ms / 1000)

    def _readable(self, result: FetchPartitionResult) -> int:
        """Up to where the plan's reader sees anything."""
        committed = self._plan.isolation == IsolationLevel.READ_COMMITTED
        return result.last_stable_offset if committed else result.high_watermark

    def _is_local(self, position: int) -> bool:
        """Whether an empty answer is the truth: a broker that waits for remote storage in vain says nothing else."""
        return self._offset_at(EARLIEST_LOCAL) <= position

    def _after(self, error: KafkaError, position: int, waited_ms: float) -> int:
        """The offset to continue from after an error, which is raised if a retry cannot help."""
        timeout_ms = self._plan.client.api_timeout_ms
        if error.code in _GONE and waited_ms > min(_GONE_AFTER_MS, timeout_ms):
            return self._lost(position, self._wanted.end, f"the topic is gone ({error.message})")
        if error.code not in _RETRIED or waited_ms > timeout_ms:
            raise error
        self._leader = None
        self._cluster.close()  # an answer may still come on the old connection
        return position

    def _behind_loss(self, position: int) -> int:
        earliest, latest = self._offset_at(EARLIEST), self._offset_at(LATEST)
        if position < earliest:
            return self._lost(position, min(earliest, self._wanted.end), f"the log starts at {earliest}")
        if position > latest:
            return self._lost(position, self._wanted.end, f"the log ends at {latest}")
        raise to_error(ErrorCode.OFFSET_OUT_OF_RANGE)

    def _offset_at(self, timestamp: int) -> int:
        partition = TopicPartition(self._wanted.topic, self._wanted.partition)
        found = list_offsets(self._cluster, {partition: timestamp})[partition]
        if isinstance(found, KafkaError):
            raise found
        return found.offset

    def _give_up(self, position: int, result: FetchPartitionResult) -> int:
        """Nothing came in all the time there was: the log is shorter than planned, or somebody has to be waited for."""
        if 0 <= result.high_watermark < self._wanted.end:
            return self._lost(position, self._wanted.end, f"the log ends at {result.high_watermark}")
        if result.high_watermark < 0:
            why = "the broker holds its answers back (quotas)"
        elif self._readable(result) < self._wanted.end:
            why = f"a transaction is open since {result.last_stable_offset}"
        else:
            why = "the broker waits for its remote storage"
        timeout_ms = self._plan.client.api_timeout_ms
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"{self._name}: nothing came from offset {position} in {timeout_ms} ms: {why}"
        )

    def _lost(self, first: int, end: int, why: str) -> int:
        message = f"{self._name}: offsets {first} to {end - 1} are lost: {why}"
        if self._plan.fail_on_data_loss:
            raise DataLossError(f"{message}. To continue without them, set the option failOnDataLoss=false")
        logger.warning("%s", message)
        return end

    @property
    def _name(self) -> str:
        return f"{self._wanted.topic}-{self._wanted.partition}"

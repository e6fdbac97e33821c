"""The controller's records for the brokers: a log in memory, read by long-polling Fetch requests.

Offset n is the n-th record ever written, so a broker fetches from its image's version on, and by that confirms that it
has applied everything before it. One that is too far behind, or new, gets a snapshot: the records of the whole image,
marked by a snapshot id with the version they lead to.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.network.client_connection import Answer, Buffers, ClientConnection
from moldau.broker.network.request import RequestContext
from moldau.clocks import Clock
from moldau.errors import ErrorCode, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record, record_from_json, record_to_json
from moldau.wire.batch import encode_batch, iter_headers, iter_records, stamp
from moldau.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest, encode_fetch_response

METADATA_TOPIC_ID = bytes(15) + b"\1"
"""Kafka's own, of `__cluster_metadata`."""

KEPT_BYTES = 8 * 1024 * 1024
"""Records that are kept for brokers that are a little behind; all others get a snapshot."""
RECORDS_PER_BATCH = 5000
WAIT_MAX_MS = 60_000
"""For the next change; brokers ask for less."""


class _Batch(NamedTuple):
    start: int
    end: int
    data: bytes


class _Waiting(NamedTuple):
    version: int
    answer: asyncio.Future[Buffers]
    context: RequestContext


class MetadataFeed:
    def __init__(self, metadata: MetadataCache, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._metadata = metadata
        self._loop = loop
        self._clock = clock
        self._image = MetadataImage()
        """The controller's, with all records that were published."""
        self.applied_versions: dict[int, int] = {}
        """The version that each broker has applied, as far as it told this controller."""
        self._epoch = -1
        self._start = 0
        self._end = 0
        self._batches: deque[_Batch] = deque()
        self._kept_bytes = 0
        self._waiting: dict[_Waiting, None] = {}
        self._connections: dict[ClientConnection, int] = {}
        self._progress = asyncio.Event()

    def begin(self, epoch: int, image: MetadataImage) -> None:
        self.end()
        self._epoch = epoch
        self._image = image
        self._start = self._end = image.version

    def end(self) -> None:
        self._epoch = -1
        self._batches.clear()
        self._kept_bytes = 0
        self.applied_versions.clear()
        self._progress.set()
        self._connections.clear()
        self._answer_waiting()

    def publish(self, records: Sequence[Record], image: MetadataImage) -> None:
        """Records that lead to `image`, durable by now."""
        self._image = image
        for batch in _batches(records, image.version - len(records), self._epoch, self._clock()):
            self._batches.append(batch)
            self._kept_bytes += len(batch.data)
            self._end = batch.end
        while self._kept_bytes > KEPT_BYTES:
            dropped = self._batches.popleft()
            self._kept_bytes -= len(dropped.data)
            self._start = dropped.end
        self._answer_waiting()

    # -- serving brokers

    def handle(self, context: RequestContext, request: FetchRequest) -> Answer:
        partitions = request.topics[0].partitions
        if not context.is_from_broker or not partitions:
            code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return encode_fetch_response(context.version, context.correlation_id, [], error_code=code)
        requested = partitions[0]
        broker = self._image.brokers.get(request.replica_id)
        is_registered = broker is not None and broker.broker_epoch == request.replica_epoch
        if is_registered and requested.current_leader_epoch == self._epoch:
            self._connections[context.connection] = request.replica_id
            self.on_applied(request.replica_id, requested.fetch_offset)
        if self._epoch < 0 or requested.current_leader_epoch != self._epoch or requested.fetch_offset != self._end:
            return self._answer(context, requested)
        answer: asyncio.Future[Buffers] = self._loop.create_future()
        waiting = _Waiting(requested.fetch_offset, answer, context)
        self._waiting[waiting] = None
        timer = self._loop.call_later(min(request.max_wait_ms, WAIT_MAX_MS) / 1000, self._answer_one, waiting)

        def leave(_: object) -> None:
            timer.cancel()
            self._waiting.pop(waiting, None)

        answer.add_done_callback(leave)
        return answer

    def broker_of(self, connection: ClientConnection) -> int | None:
        """The broker of a connection that was closed, if any; forgets the connection."""
        return self._connections.pop(connection, None)

    def is_connected(self, broker_id: int) -> bool:
        return broker_id in self._connections.values()

    def on_applied(self, broker_id: int, version: int) -> None:
        self.applied_versions[broker_id] = version
        self._progress.set()

    async def everywhere(self, version: int) -> None:
        """Returns when every live broker has applied `version`."""
        while any(self.applied_versions.get(one, -1) < version for one in self._metadata.live_brokers):
            self._progress.clear()
            await self._progress.wait()

    def _answer_waiting(self) -> None:
        for waiting in tuple(self._waiting):
            self._answer_one(waiting)

    def _answer_one(self, waiting: _Waiting) -> None:
        if not waiting.answer.done():
            requested = FetchPartition(0, current_leader_epoch=self._epoch, fetch_offset=waiting.version)
            answer = self._answer(waiting.context, requested)
            waiting.answer.set_result(answer)

    def _answer(self, context: RequestContext, requested: FetchPartition) -> Buffers:
        return encode_fetch_response(
            context.version,
            context.correlation_id,
            [("__cluster_metadata", METADATA_TOPIC_ID, [self._result(requested)])],
        )

    def _result(self, requested: FetchPartition) -> FetchPartitionResult:
        if self._epoch < 0:
            return FetchPartitionResult(0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if requested.current_leader_epoch != self._epoch:
            is_old = requested.current_leader_epoch < self._epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            return FetchPartitionResult(0, int(code))
        version = requested.fetch_offset
        if self._start <= version <= self._end:
            new = [batch.data for batch in self._batches if batch.start >= version]
            return FetchPartitionResult(0, 0, self._end, self._end, self._start, None, -1, new)
        image = self._image
        batches = _batches(list(image.to_records()), 0, self._epoch, self._clock())
        whole = [batch.data for batch in batches]
        snapshot = (image.version, self._epoch)
        return FetchPartitionResult(0, 0, self._end, self._end, self._start, None, -1, whole, snapshot_id=snapshot)


def apply_result(image: MetadataImage, result: FetchPartitionResult) -> MetadataImage:
    """The image that a broker has after this answer to its fetch."""
    data = result.records if isinstance(result.records, (bytes, memoryview)) else b"".join(result.records or ())
    if result.snapshot_id is not None:
        records = list(_records_of(bytes(data), 0))
        return MetadataImage(version=result.snapshot_id[0] - len(records)).apply(records)
    return image.apply(_records_of(bytes(data), image.version)) if data else image


def _batches(records: Sequence[Record], version: int, epoch: int, now_ms: int) -> Iterable[_Batch]:
    for start in range(0, len(records), RECORDS_PER_BATCH):
        part = records[start : start + RECORDS_PER_BATCH]
        values = [json.dumps(record_to_json(record), separators=(",", ":")).encode() for record in part]
        data = bytearray(encode_batch([(None, value, now_ms, ()) for value in values]))
        first = version + start
        stamp(data, 0, first, epoch)
        yield _Batch(first, first + len(part), bytes(data))


def _records_of(data: bytes, version: int) -> Iterable[Record]:
    for position, header in iter_headers(data):
        if header.base_offset != version:
            raise StorageError(f"the controller sent metadata from {header.base_offset} on, {version} was next")
        version = header.next_offset
        for record in iter_records(data, position, header):
            try:
                yield record_from_json(json.loads(record.value or b""))
            except json.JSONDecodeError as error:
                raise StorageError(f"the controller sent a record that is not JSON: {error}") from None

"""A client that hides nothing: one blocking socket, whole frames, any version, any nonsense."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self
from uuid import UUID

from moldau.errors import RETRIABLE, ErrorCode
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.batch import Header, Record, decode_records, encode_batch, iter_headers
from moldau.wire.messages import decode_response, encode_request, ms, request_schema

TIMEOUT_S = 20.0
NO_PRODUCER = (-1, -1, -1)


class RawClient:
    def __init__(self, bootstrap: str, *, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # -- frames

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_frame(self) -> bytes | None:
        """The next frame without its size; None when the broker closed the connection instead."""
        head = self._read(4)
        return None if head is None else self._read(struct.unpack(">i", head)[0])

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    def is_closed(self) -> bool:
        """Waits until the broker closes the connection; False when it answers or stays silent instead."""
        try:
            return self.receive_frame() is None
        except TimeoutError:
            return False

    def has_answer(self, within_s: float) -> bool:
        return bool(select.select([self.socket], [], [], within_s)[0])

    # -- messages

    def send(self, entity: Any) -> int:
        """Returns the correlation id."""
        self._correlation_id += 1
        self.send_bytes(encode_request(self._correlation_id, "raw", entity))
        return self._correlation_id

    def receive(self, like: Any) -> tuple[int, Any]:
        """The correlation id and the answer to a request such as `like`."""
        frame = self.receive_frame()
        if frame is None:
            raise ConnectionError(f"closed instead of an answer to {type(like).__name__} v{like.__version__}")
        return decode_response(like.__api_key__, like.__version__, frame)

    def ask(self, entity: Any) -> Any:
        expected = self.send(entity)
        correlation_id, answer = self.receive(entity)
        assert correlation_id == expected
        return answer

    # -- the usual questions

    def produce(self, topic: str, batch: bytes | None, partition: int = 0, **options: Any) -> Any:
        """The answer for the one partition."""
        answer = self.ask(produce_request(topic, batch, partition, **options))
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str | UUID, offset: int, partition: int = 0, **options: Any) -> Any:
        """The answer for the one partition."""
        answer = self.ask(fetch_request([(topic, partition, offset)], **options))
        assert getattr(answer, "error_code", 0) == 0  # of the session, since version 7
        return answer.responses[0].partitions[0]

    def read_all(self, topic: str, partition: int = 0) -> list[Record]:
        """Up to the high watermark. Asks again while the broker does not know yet that it leads."""
        found: list[Record] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            part = self.fetch(topic, found[-1].offset + 1 if found else 0, partition)
            if ErrorCode(part.error_code) in RETRIABLE and time.monotonic() < deadline_s:
                time.sleep(0.02)
                continue
            assert part.error_code == 0
            records = records_in(part.records)
            if not records:
                return found
            found += records

    def topic_id(self, topic: str) -> Any:
        schema = request_schema(ApiKey.METADATA, 12)
        wanted = schema.MetadataRequestTopic(topic_id=None, name=topic)
        answer = self.ask(
            schema.MetadataRequest(
                topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
        )
        return answer.topics[0].topic_id

    def init_producer_id(self) -> tuple[int, int]:
        schema = request_schema(ApiKey.INIT_PRODUCER_ID, 4)
        answer = self.ask(
            schema.InitProducerIdRequest(
                transactional_id=None, transaction_timeout=ms(60_000), producer_id=-1, producer_epoch=-1
            )
        )
        assert answer.error_code == 0
        return answer.producer_id, answer.producer_epoch


def batch_of(
    *values: bytes | None,
    key: bytes | None = None,
    timestamp_ms: int | None = None,
    headers: Sequence[Header] = (),
    producer: tuple[int, int, int] = NO_PRODUCER,
    **options: Any,
) -> bytes:
    """A record batch; `producer` is id, epoch and base sequence."""
    stamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    return encode_batch(
        [(key, value, stamp, headers) for value in values],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        **options,
    )


def records_in(data: bytes | None) -> list[Record]:
    """Every record of the batches in a Fetch answer."""
    found: list[Record] = []
    for position, header in iter_headers(data or b""):
        found += decode_records(data or b"", position, header)
    return found


def produce_request(
    topic: str | None,
    batch: bytes | None,
    partition: int = 0,
    *,
    version: int = 9,
    acks: int = -1,
    topic_id: Any = None,
    transactional_id: str | None = None,
) -> Any:
    schema = request_schema(ApiKey.PRODUCE, version)
    return schema.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=ms(30_000),
        topic_data=(
            schema.TopicProduceData(
                name=topic,
                topic_id=topic_id,
                partition_data=(schema.PartitionProduceData(index=partition, records=batch),),
            ),
        ),
    )


def fetch_request(
    wanted: Iterable[tuple[Any, int, int]],
    *,
    version: int = 12,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[tuple[Any, int]] = (),
    leader_epoch: int = -1,
    isolation_level: int = 0,
) -> Any:
    """`wanted` are (topic name, or its id from version 13 on; partition; offset)."""
    schema = request_schema(ApiKey.FETCH, version)
    return schema.FetchRequest(
        cluster_id=None,
        replica_id=-1,
        max_wait=ms(max_wait_ms),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        rack_id="",
        topics=tuple(
            schema.FetchTopic(
                topic=topic,
                topic_id=topic,
                partitions=(
                    schema.FetchPartition(
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=partition_max_bytes,
                    ),
                ),
            )
            for topic, partition, offset in wanted
        ),
        forgotten_topics_data=tuple(
            schema.ForgottenTopic(topic=topic, topic_id=topic, partitions=(partition,))
            for topic, partition in forgotten
        ),
    )


def list_offsets_request(topic: str, timestamp_ms: int, *, version: int = 7, leader_epoch: int = -1) -> Any:
    schema = request_schema(ApiKey.LIST_OFFSETS, version)
    return schema.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=(
            schema.ListOffsetsTopic(
                name=topic,
                partitions=(
                    schema.ListOffsetsPartition(
                        partition_index=0, current_leader_epoch=leader_epoch, timestamp=timestamp_ms
                    ),
                ),
            ),
        ),
        timeout=ms(30_000),
    )


def api_versions_request(version: int = 0) -> Any:
    schema = request_schema(ApiKey.API_VERSIONS, version)
    return schema.ApiVersionsRequest(client_software_name="raw", client_software_version="1")


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    """A request header, of either kind as the version wants it."""
    api = APIS.get(api_key)
    flexible = api is not None and api.flexible_from is not None and version >= api.flexible_from
    return struct.pack(">hhih", api_key, version, correlation_id, -1) + (b"\0" if flexible else b"")

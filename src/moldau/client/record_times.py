"""When records were written: the timestamp of the record at an offset, with one small Fetch per partition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from moldau.client.cluster import ClusterClient
from moldau.client.connection import Connection, to_error
from moldau.client.small_fetches import LAST_VERSION_WITH_NAMES, small_fetch
from moldau.errors import KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.batch import iter_headers, iter_records
from moldau.wire.constants import IsolationLevel
from moldau.wire.fetch import parse_fetch_response
from moldau.wire.topic_partition import TopicPartition


def record_timestamps(
    cluster: ClusterClient, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, int | KafkaError | None]:
    """In milliseconds, of the first record at or after each offset; None if there is none yet."""

    def call(
        connection: Connection, part: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError | None]:
        return {key: _first_timestamp(connection, key, offset, isolation) for key, offset in part.items()}

    return cluster.at_leaders(offsets, call)


def _first_timestamp(
    connection: Connection, key: TopicPartition, offset: int, isolation: IsolationLevel
) -> int | KafkaError | None:
    version = min(connection.version_of(ApiKey.FETCH) or LAST_VERSION_WITH_NAMES, LAST_VERSION_WITH_NAMES)
    build = partial(small_fetch, offsets={key: offset}, isolation=isolation)
    frame = connection.send_raw(ApiKey.FETCH, version, build, lambda size: memoryview(bytearray(size)))
    response = parse_fetch_response(version, frame)
    for _, _, results in response.topics:
        for result in results:
            if result.error_code:
                return to_error(result.error_code)
            return _timestamp_at(result.records, offset) if isinstance(result.records, memoryview) else None
    return to_error(response.error_code) if response.error_code else None


def _timestamp_at(records: memoryview, offset: int) -> int | None:
    for position, header in iter_headers(records):
        if header.is_log_append_time:
            return header.max_timestamp
        for record in iter_records(records, position, header):
            if record.offset >= offset:
                return record.timestamp_ms
    return None

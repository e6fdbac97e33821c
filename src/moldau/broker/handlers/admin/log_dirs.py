"""DescribeLogDirs (35): the log directories of this broker, their partitions, and how much space is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.off_loop import answer_in_thread
from moldau.errors import ErrorCode
from moldau.log.manager import DirDescription
from moldau.wire.messages import Schema, error, ms
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasThreads, needs.HasLogs, Protocol):
    """What these handlers use."""


INLINE_MAX = 200
"""Partitions described on the event loop: each takes ten microseconds."""


def handle_describe_log_dirs(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    directories = broker.logs.describe_dirs()

    def answer() -> Any:
        asked: set[TopicPartition] | None = None
        if request.topics is not None:
            asked = {TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions}
        return schema.DescribeLogDirsResponse(
            throttle_time=ms(0),
            error_code=error(ErrorCode.NONE),
            results=tuple(_described(schema, directory, asked) for directory in directories),
        )

    asked_count = sum(1 + len(topic.partitions) for topic in request.topics or ())
    if asked_count + sum(len(directory.sizes) for directory in directories) <= INLINE_MAX:
        return answer()
    return answer_in_thread(broker, context, answer)


def _described(schema: Schema, directory: DirDescription, asked: set[TopicPartition] | None) -> Any:
    if directory.error:
        return schema.DescribeLogDirsResult(
            error_code=error(ErrorCode.KAFKA_STORAGE_ERROR), log_dir=str(directory.path), topics=()
        )
    topics: dict[str, list[Any]] = {}
    for (topic, index), size_bytes in directory.sizes.items():
        if asked is None or (topic, index) in asked:
            # A log is never behind itself (offset lag), nor on its way to another folder (future key).
            described = schema.DescribeLogDirsPartition(
                partition_index=index, partition_size=size_bytes, offset_lag=0, is_future_key=False
            )
            topics.setdefault(topic, []).append(described)
    return schema.DescribeLogDirsResult(
        error_code=error(ErrorCode.NONE),
        log_dir=str(directory.path),
        topics=tuple(
            schema.DescribeLogDirsTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
        ),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )

"""Metadata (3), DescribeCluster (60) and DescribeTopicPartitions (75): who is in the cluster and leads what."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.cluster.packed_metadata import visible_topic
from moldau.broker.cluster.peers import FORWARDING
from moldau.broker.handlers.admin.topics import CreatesTopics, NewTopic, create_topics
from moldau.broker.network.client_connection import Buffers
from moldau.broker.turns import Work
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import TopicImage
from moldau.metadata.topics import is_internal, validate_topic_name
from moldau.wire.apis import ApiKey
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.messages import Schema, error, ms
from moldau.wire.metadata import (
    OPERATIONS_NOT_ASKED,
    MetadataTopic,
    framed,
    pack_described_topic,
    pack_described_topics,
    pack_metadata_response,
    pack_metadata_topic,
)

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(CreatesTopics, needs.HasPackedMetadata, needs.HasControllerChannel, needs.HasLogs, Protocol):
    """What these handlers use."""


logger = logging.getLogger(__name__)

# Authorized operations, as bits: all of them, because there is no authentication.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

REFUSALS_LOGGED_MAX = 10
"""Per request, which may name a hundred thousand topics."""
SORTED_AT_ONCE = 5000
"""Names: a millisecond or two."""

_BROKERS, _CONTROLLERS = 1, 2
_TOPIC_IDS_VERSION_MIN = 12


# -- Metadata


def handle_metadata(broker: Broker, context: RequestContext, request: Any) -> Any:
    version = context.version
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        return _answer_all(broker, context, request)
    return _answer_named(broker, context, request)


def _answer_all(broker: Broker, context: RequestContext, request: Any) -> Work[Buffers]:
    listener = context.connection.listener
    answer = yield from broker.packed_metadata.all_topics(listener, context.version, *_operations(request))
    return framed(context.correlation_id, answer)


def _answer_named(broker: Broker, context: RequestContext, request: Any) -> Work[Buffers]:
    asked, version = request.topics, context.version
    names: dict[str, None] = {}
    ids: dict[uuid.UUID, None] = {}
    for topic in asked:
        if not _names_one(topic, version):
            return (yield from _refuse(context, asked))
        topic_id = getattr(topic, "topic_id", None)
        if topic_id is None:
            names[topic.name] = None
        else:
            ids[topic_id] = None
        yield
    if ids:
        return (yield from _answer_by_id(broker, context, request, ids))
    if broker.local.config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True):
        missing = [name for name in names if name not in broker.metadata.image.topics and _may_create(name)]
        if missing:
            yield _create(broker, missing)
    return (yield from _answer(broker, context, request, names))


def _answer_by_id(broker: Broker, context: RequestContext, request: Any, ids: Iterable[uuid.UUID]) -> Work[Buffers]:
    names, unknown = [], []
    for topic_id in ids:
        topic = broker.metadata.image.topic_by_id(topic_id)
        if topic is not None:
            names.append(topic.name)
        else:
            unknown.append(MetadataTopic(None, topic_id.bytes, error_code=int(ErrorCode.UNKNOWN_TOPIC_ID)))
        yield
    return (yield from _answer(broker, context, request, names, unknown))


def _names_one(topic: Any, version: int) -> bool:
    """Whether a topic is asked for in a way its version allows: the field for ids came two versions early."""
    topic_id = getattr(topic, "topic_id", None)
    if version < _TOPIC_IDS_VERSION_MIN:
        return topic.name is not None and topic_id is None
    return topic.name is not None or topic_id is not None


def _operations(request: Any) -> tuple[int, int]:
    topic = getattr(request, "include_topic_authorized_operations", False)
    cluster = getattr(request, "include_cluster_authorized_operations", False)
    return (
        TOPIC_OPERATIONS if topic else OPERATIONS_NOT_ASKED,
        CLUSTER_OPERATIONS if cluster else OPERATIONS_NOT_ASKED,
    )


def _may_create(name: str) -> bool:
    """Internal topics are made by the coordinators that own them, with settings of their own."""
    return _absence(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not (is_internal(name) or name == METADATA_TOPIC)


def _absence(name: str) -> ErrorCode:
    """Why there is no topic of that name."""
    try:
        validate_topic_name(name)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _create(broker: Broker, missing: Sequence[str]) -> None:
    """Creates topics on first use."""
    if broker.controller.is_active:
        outcomes = await create_topics(broker, [NewTopic(name) for name in missing])
        refused = {name: one.message for name, one in outcomes.items() if isinstance(one, KafkaError)}
    else:
        refused = await _ask_for_topics(broker, missing)
    absent = [name for name in refused if name not in broker.metadata.image.topics]
    for name in absent[:REFUSALS_LOGGED_MAX]:
        logger.warning("cannot create a topic on first use", extra={"topic": name, "why": refused[name]})
    if len(absent) > REFUSALS_LOGGED_MAX:
        logger.warning("cannot create further topics on first use", extra={"more": len(absent) - REFUSALS_LOGGED_MAX})


async def _ask_for_topics(broker: Broker, names: Sequence[str]) -> dict[str, str]:
    """Lets the controller create topics with its defaults; those it refused, and why."""

    def build(schema: Schema) -> Any:
        topics = (
            schema.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=(), configs=())
            for name in names
        )
        return schema.CreateTopicsRequest(topics=tuple(topics), timeout=ms(30_000), validate_only=False)

    try:
        answer = await broker.controller_channel.ask(ApiKey.CREATE_TOPICS, build, purpose=FORWARDING)
    except KafkaError as error:
        return dict.fromkeys(names, error.message)
    return {topic.name: topic.error_message or "" for topic in answer.topics if topic.error_code}


def _answer(
    broker: Broker,
    context: RequestContext,
    request: Any,
    names: Iterable[str],
    unknown: Sequence[MetadataTopic] = (),
) -> Work[Buffers]:
    version = context.version
    operations, cluster_operations = _operations(request)
    packed = broker.packed_metadata
    topics = []
    for absent in unknown:
        topics.append(pack_metadata_topic(version, absent))
        yield
    for name in names:
        topic = yield from packed.topic(name, version, operations)
        if topic is None:
            topic = pack_metadata_topic(version, _missing_topic(name, operations))
        topics.append(topic)
        yield
    answer = packed.response(context.connection.listener, version, cluster_operations, topics)
    return framed(context.correlation_id, answer)


def _missing_topic(name: str, operations: int) -> MetadataTopic:
    return MetadataTopic(
        name,
        is_internal=is_internal(name),
        error_code=int(_absence(name)),
        authorized_operations=operations,
    )


def _refuse(context: RequestContext, asked: Iterable[Any]) -> Work[Buffers]:
    code = int(ErrorCode.INVALID_REQUEST)
    topics = []
    for topic in asked:
        if topic.topic_id is not None:
            refused = MetadataTopic(topic.name or "", topic.topic_id.bytes, error_code=code)
        else:
            refused = MetadataTopic(topic.name or "", error_code=code)
        topics.append(pack_metadata_topic(context.version, refused))
        yield
    answer = pack_metadata_response(
        context.version, brokers=(), cluster_id=None, controller_id=-1, topics=topics, error_code=code
    )
    return framed(context.correlation_id, answer)


# -- DescribeCluster


def handle_describe_cluster(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        if endpoint_type == _CONTROLLERS:
            code, message = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                "The request was sent to an endpoint of brokers, but it is meant for one of controllers.",
            )
        else:
            code, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint_type}"
        return schema.DescribeClusterResponse(
            throttle_time=ms(0),
            error_code=error(code),
            error_message=message,
            cluster_id="",
            controller_id=-1,
            brokers=(),
        )
    asked = request.include_cluster_authorized_operations
    return schema.DescribeClusterResponse(
        throttle_time=ms(0),
        error_code=error(ErrorCode.NONE),
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=broker.logs.cluster_id,
        controller_id=broker.controller.leader_id,
        brokers=tuple(
            schema.DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack, is_fenced=fenced)
            for fenced in ((False, True) if getattr(request, "include_fenced_brokers", False) else (False,))
            for node_id, host, port, rack in broker.metadata.endpoints(context.connection.listener, fenced=fenced)
        ),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


# -- DescribeTopicPartitions


def handle_describe_topic_partitions(broker: Broker, context: RequestContext, request: Any) -> Work[Buffers]:
    names = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        code = int(ErrorCode.INVALID_REQUEST)
        refused = []
        for topic in request.topics:
            refused.append(pack_described_topic(MetadataTopic(topic.name, error_code=code)))
            yield
        return framed(context.correlation_id, pack_described_topics(refused, None))
    first = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    limit = max(1, min(request.response_partition_limit, broker.local.config.max_request_partition_size_limit))
    page = _Page(broker, limit)
    for name in (yield from _sorted(names or broker.metadata.image.topics)):
        if name >= first[0] and not page.add(name, first[1] if name == first[0] else 0):
            break
        yield
    return framed(context.correlation_id, pack_described_topics(page.topics, page.next_cursor))


def _sorted(names: Iterable[str]) -> Work[Iterable[str]]:
    """Sorted in pieces, as far as the first ones are asked for: to sort a hundred thousand takes long."""
    rest = iter(names)
    pieces = []
    while piece := sorted(islice(rest, SORTED_AT_ONCE)):
        pieces.append(piece)
        yield
    return merge(*pieces)


class _Page:
    """As many partitions, in the order of topic names, as one answer may hold."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self.topics: list[bytes] = []
        self.next_cursor: tuple[str, int] | None = None
        self._image = broker.metadata.image
        self._alive = broker.metadata.live_brokers
        self._room = limit

    def add(self, name: str, first: int) -> bool:
        """False when the page is full, and the rest is for the next one."""
        if not self._room:
            self.next_cursor = (name, 0)
            return False
        topic = self._image.topics.get(name)
        if topic is None:
            self.topics.append(pack_described_topic(_missing_topic(name, TOPIC_OPERATIONS)))
            return True
        part = topic.partitions[first : first + self._room]
        visible = visible_topic(TopicImage(name, topic.topic_id, part), self._alive, TOPIC_OPERATIONS)
        self.topics.append(pack_described_topic(visible))
        self._room -= len(part)
        if first + len(part) < len(topic.partitions):
            self.next_cursor = (name, first + len(part))
            return False
        return True

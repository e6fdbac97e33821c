"""OffsetCommit, OffsetFetch, TxnOffsetCommit and OffsetDelete (keys 8, 9, 28, 47): the committed offsets of groups.

Topics and partitions that do not exist are rejected here, one by one; the group's coordinator handles the rest. Since
version 10 topics are named by id. An error of the whole group is returned for each partition, or once if the response
has a field for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.coordination.transaction_coordinator import Admission, Verification
from moldau.broker.handlers.groups.coordinator_replies import wait_for_reply
from moldau.broker.replicas.partition import Partition
from moldau.broker.turns import Work
from moldau.coordinators.effects import Effects, Waiter
from moldau.coordinators.group import check_group_id
from moldau.coordinators.offsets.cleanup import delete_offsets
from moldau.coordinators.offsets.commits import (
    DEFAULT_RETENTION,
    Commit,
    Fetch,
    Fetched,
    Offset,
    Prepared,
    RequestedPartition,
    commit,
    fetch,
    fetchable,
    records_of,
)
from moldau.coordinators.transactions.transaction import Identity
from moldau.errors import UNREACHABLE, ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.offset_commit import encode_commit_response
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.coordinators.group_shard import GroupShard


class Broker(
    needs.HasClock,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasPartitions,
    needs.HasGroups,
    needs.HasTransactions,
    Protocol,
):
    """What these handlers use."""


_EPOCHS_VERSION_MIN = 9
COMMITTED_MAX = 10_000
"""Offsets that one request may commit: they are one batch of `__consumer_offsets`. Kafka's limit is the topic's
`max.message.bytes`, which is about as many."""
INLINE_MAX = 200
"""Offsets that are encoded on the loop: two milliseconds. A thread encodes more."""
FETCHED_PER_STEP = 100
DELETED_PER_STEP = 200

_MANY_GROUPS_VERSION_MIN = 8
_TOPIC_IDS_VERSION_MIN = 10
_GROUP_ERROR_VERSION_MIN = 2
_LOADING_KNOWN_VERSION_MIN = 2
_ABORTABLE_VERSION_MIN = 4
_ADDS_VERSION_MIN = 5

_Refusals = dict[int, ErrorCode]
_Indexes = tuple[str | None, uuid.UUID | None, Sequence[int]]
_FetchedTopic = tuple[str | None, uuid.UUID | None, list[Fetched]]
_FetchedGroup = tuple[Any, ErrorCode, list[_FetchedTopic]]
"""What was asked, and the error of the group, or what it committed."""


# -- committing


def handle_offset_commit(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    offsets, refusals = yield from _offsets(broker, request)
    retention = getattr(request, "retention_time", None)
    asked = Commit(
        request.group_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.generation_id_or_member_epoch,
        offsets,
        DEFAULT_RETENTION if retention is None else retention // ms(1),
        context.version >= _EPOCHS_VERSION_MIN,
    )
    asked = yield from _prepared(broker, asked)
    return (yield from _commit(broker, context, request, asked, refusals))


def handle_txn_offset_commit(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    offsets, refusals = yield from _offsets(broker, request)
    asked = Commit(
        request.group_id,
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        getattr(request, "generation_id", -1),
        offsets,
        producer=(request.producer_id, request.producer_epoch),
    )
    asked = yield from _prepared(broker, asked)
    try:
        if context.version < _LOADING_KNOWN_VERSION_MIN and broker.groups.is_loading:
            # Producers before 2.0 stop at the code for "loading" instead of asking again.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        check_group_id(request.group_id)
        broker.groups.shard(request.group_id)
        partition = broker.find_partition(broker.groups.topic, None, broker.groups.partition_for(request.group_id))
        _check_producer(partition, request)
        verification = _verification(broker, context, request, partition) if offsets else None
        beginning = None if verification is None else verification.start()
        if beginning is not None:
            yield beginning
            _check_producer(partition, request)  # it may have been fenced in the meantime
        if verification is not None:
            verification.check(partition)
    except KafkaError as failure:
        return encode_commit_response(context.correlation_id, request, repeat(_client_code(failure.code)))
    return (yield from _commit(broker, context, request, asked, refusals))


def _verification(broker: Broker, context: RequestContext, request: Any, partition: Partition) -> Verification:
    """The group's partition has to be part of the producer's open transaction."""
    admission = Admission.ADD if context.version >= _ADDS_VERSION_MIN else Admission.VERIFY
    if context.version < _ABORTABLE_VERSION_MIN:
        admission = Admission.VERIFY_OLD
    producer = Identity(request.producer_id, request.producer_epoch)
    return broker.transactions.verification(request.transactional_id, producer, (partition,), admission)


def _client_code(code: ErrorCode) -> ErrorCode:
    """What went wrong between brokers is to a producer as if its group were being loaded: it asks again."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code in UNREACHABLE else code


def _offsets(broker: Broker, request: Any) -> Work[tuple[list[Offset], _Refusals]]:
    """The offsets to commit, for partitions that exist."""
    existing, refusals = yield from _sort_out(broker, request.topics)
    offsets = []
    for name, topic_id, one in existing:
        offsets.append(
            Offset(
                name,
                one.partition_index,
                one.committed_offset,
                getattr(one, "committed_leader_epoch", -1),
                one.committed_metadata,
                topic_id,
            )
        )
        yield
    return offsets, refusals


def _prepared(broker: Broker, asked: Commit) -> Work[Commit]:
    """A commit of many offsets is one step and one batch: what can be done before the step is done in a thread."""
    if not INLINE_MAX < len(asked.offsets) <= COMMITTED_MAX:
        return asked
    metadata_max, now_ms = broker.local.config.offset_metadata_max_bytes, broker.clock()

    def prepare() -> Prepared:
        prepared = records_of(asked, metadata_max, now_ms)
        batch = broker.groups.encode(prepared.records, asked.producer) if prepared.records else None
        return prepared._replace(batch=batch)

    return asked._replace(prepared=(yield prepare))


def _commit(broker: Broker, context: RequestContext, request: Any, asked: Commit, refusals: _Refusals) -> Work[Any]:
    codes: Iterable[ErrorCode]
    if len(asked.offsets) > COMMITTED_MAX:
        codes = repeat(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    elif not asked.offsets:
        codes = _merged(refusals, ())
    else:
        try:
            reply = broker.groups.ask(
                asked.group_id, lambda shard, waiter, now_ms: commit(shard, waiter, asked, now_ms)
            )
            codes = _merged(refusals, (yield from wait_for_reply(reply)))
        except KafkaError as refusal:
            codes = repeat(refusal.code)
    encode = partial(encode_commit_response, context.correlation_id, request, codes)
    return encode() if len(asked.offsets) + len(refusals) <= INLINE_MAX else (yield encode)


def _check_producer(partition: Partition, request: Any) -> None:
    """Before anything is remembered of the commit: its batch must not be refused by the log afterwards."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    if producer_id < 0 or epoch < 0:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no producer {producer_id}, epoch {epoch}")
    known = partition.log.producers.producers.get(producer_id)
    if known is not None and epoch < known.epoch:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is older than {known.epoch}")


# -- deleting


def handle_offset_delete(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    schema = context.schema
    existing, refusals = yield from _sort_out(broker, request.topics)
    partitions = [TopicPartition(name, one.partition_index) for name, _, one in existing]

    codes: list[ErrorCode] = []
    try:
        group_id = request.group_id
        check_group_id(group_id)
        for start in range(0, max(1, len(partitions)), DELETED_PER_STEP):
            part = partitions[start : start + DELETED_PER_STEP]
            reply = broker.groups.ask(group_id, partial(_delete_some, group_id, part))
            codes += yield from wait_for_reply(reply)
            yield
    except KafkaError as refusal:
        return schema.OffsetDeleteResponse(error_code=error(refusal.code), throttle_time=ms(0), topics=())
    code = iter(_merged(refusals, codes))
    topics = []
    for topic in request.topics:
        results = []
        for one in topic.partitions:
            results.append(
                schema.OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=error(next(code)))
            )
            yield
        topics.append(schema.OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(results)))
    return schema.OffsetDeleteResponse(error_code=error(ErrorCode.NONE), throttle_time=ms(0), topics=tuple(topics))


def _delete_some(
    group_id: str, partitions: Sequence[TopicPartition], shard: GroupShard, waiter: Waiter, _: int
) -> Effects:
    return delete_offsets(shard, waiter, group_id, partitions)


# -- fetching


def handle_offset_fetch(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    has_many = context.version >= _MANY_GROUPS_VERSION_MIN
    require_stable = getattr(request, "require_stable", False)
    groups: list[_FetchedGroup] = []
    for group in request.groups if has_many else (request,):
        code, topics = yield from _fetch(broker, context, group, require_stable)
        groups.append((group, code, topics))
        yield
    # An offset that can still be lost must not be returned.
    for place, (group, code, _) in enumerate(groups):
        try:
            wait = None if code else broker.groups.settled(group.group_id)
            yield wait
        except KafkaError as failure:
            groups[place] = (group, failure.code, [])

    def build() -> Any:
        return _fetched_groups(context, groups) if has_many else _fetched_group(context, *groups[0])

    count = len(groups) + sum(len(fetched) for _, _, topics in groups for _, _, fetched in topics)
    return build() if count <= INLINE_MAX else (yield build)


def _fetched_groups(context: RequestContext, groups: list[_FetchedGroup]) -> Any:
    schema = context.schema
    return schema.OffsetFetchResponse(
        throttle_time=ms(0),
        groups=tuple(
            schema.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=error(code), topics=_fetched_topics(schema, "s", topics)
            )
            for group, code, topics in groups
        ),
    )


def _fetched_group(context: RequestContext, request: Any, code: ErrorCode, topics: list[_FetchedTopic]) -> Any:
    schema = context.schema
    if code and context.version < _GROUP_ERROR_VERSION_MIN:
        topics = [(topic.name, None, _all_with(topic, code)) for topic in request.topics]
    return schema.OffsetFetchResponse(
        throttle_time=ms(0), error_code=error(code), topics=_fetched_topics(schema, "", topics)
    )


def _fetch(
    broker: Broker, context: RequestContext, group: Any, require_stable: bool
) -> Work[tuple[ErrorCode, list[_FetchedTopic]]]:
    """The error of the group, or what it committed, topic by topic."""
    asked = Fetch(
        group_id=group.group_id,
        partitions=(),
        member_id=getattr(group, "member_id", None),
        member_epoch=getattr(group, "member_epoch", -1),
        require_stable=require_stable,
    )
    found: list[_FetchedTopic] = []
    try:
        fetch(broker.groups.shard(group.group_id), asked)  # whether the member may ask at all
        if group.topics is None:
            topics: Iterable[_Indexes] = yield from _all_topics(broker, context, group.group_id)
        else:
            topics = ((*_named(broker, topic), topic.partition_indexes) for topic in group.topics)
        for name, topic_id, indexes in topics:
            yield
            fetched: list[Fetched] = []
            for start in range(0, len(indexes), FETCHED_PER_STEP):
                some = indexes[start : start + FETCHED_PER_STEP]
                if name is None:
                    fetched += [Fetched("", index, ErrorCode.UNKNOWN_TOPIC_ID) for index in some]
                else:
                    partitions = [RequestedPartition(name, index, topic_id or ZERO_UUID) for index in some]
                    fetched += fetch(broker.groups.shard(group.group_id), asked._replace(partitions=partitions))
                yield
            found.append((name, topic_id, fetched))
    except KafkaError as failure:
        return failure.code, []
    return ErrorCode.NONE, found


def _all_topics(broker: Broker, context: RequestContext, group_id: str) -> Work[list[_Indexes]]:
    """All partitions for which the group has offsets, by topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in fetchable(broker.groups.shard(group_id), group_id):
        by_topic.setdefault(topic, []).append(partition)
        yield
    # A deleted topic has no id to name it by.
    return [
        (name, topic_id, sorted(indexes))
        for name, indexes in sorted(by_topic.items())
        if (topic_id := _id_of(broker, name)) or context.version < _TOPIC_IDS_VERSION_MIN
    ]


def _all_with(topic: Any, code: ErrorCode) -> list[Fetched]:
    return [Fetched("", index, code) for index in topic.partition_indexes]


def _fetched_topics(schema: Schema, plural: str, topics: list[_FetchedTopic]) -> tuple[Any, ...]:
    make_topic = getattr(schema, "OffsetFetchResponseTopic" + plural)
    make_partition = getattr(schema, "OffsetFetchResponsePartition" + plural)
    return tuple(
        make_topic(
            **({"name": name, "topic_id": topic_id} if plural else {"name": name}),
            partitions=tuple(
                make_partition(
                    partition_index=one.partition,
                    committed_offset=one.offset,
                    committed_leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                    error_code=error(one.error),
                )
                for one in fetched
            ),
        )
        for name, topic_id, fetched in topics
    )


# -- in common


def _named(broker: Broker, topic: Any) -> tuple[str | None, uuid.UUID | None]:
    """Name and id of a topic that a request names in one of the two ways; no name for an unknown id."""
    if hasattr(topic, "name"):
        return topic.name, None
    image = None if topic.topic_id is None else broker.metadata.image.topic_by_id(topic.topic_id)
    return None if image is None else image.name, topic.topic_id


def _id_of(broker: Broker, name: str) -> uuid.UUID | None:
    image = broker.metadata.image.topics.get(name)
    return None if image is None else image.topic_id


def _sort_out(broker: Broker, topics: Any) -> Work[tuple[list[tuple[str, uuid.UUID, Any]], _Refusals]]:
    """The partitions that exist, and the others, by their place in the request, with the reason to refuse them."""
    existing: list[tuple[str, uuid.UUID, Any]] = []
    refusals: _Refusals = {}
    for topic in topics:
        name, topic_id = _named(broker, topic)
        refusal = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        image = None if name is None else broker.metadata.image.topics.get(name)
        count = 0 if image is None else len(image.partitions)
        for partition in topic.partitions:
            if name is not None and 0 <= partition.partition_index < count:
                existing.append((name, topic_id or ZERO_UUID, partition))
            else:
                refusals[len(existing) + len(refusals)] = refusal
            yield
    return existing, refusals


def _merged(refusals: _Refusals, codes: Sequence[ErrorCode]) -> Sequence[ErrorCode]:
    """The coordinator's codes, with the refusals in their places."""
    if not refusals:
        return codes
    code = iter(codes)
    return [refusals[place] if place in refusals else next(code) for place in range(len(refusals) + len(codes))]

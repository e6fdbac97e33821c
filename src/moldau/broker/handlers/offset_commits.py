"""OffsetCommit, OffsetFetch, TxnOffsetCommit and OffsetDelete (keys 8, 9, 28, 47): what groups have read so far.

Topics and partitions that do not exist are refused here, one by one; the group's coordinator sees the rest. From
version 10 on topics come by id. An error of the group as a whole is said for each partition, or once where the
response has a place for it.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from moldau.broker.handlers.asking import answer
from moldau.broker.handlers.off_loop import answer_in_thread
from moldau.broker.partition import Partition
from moldau.broker.transactions import Admission, Entry
from moldau.coordinators.group import check_group_id
from moldau.coordinators.offsets.cleanup import delete_offsets
from moldau.coordinators.offsets.commits import (
    DEFAULT_RETENTION,
    Asked,
    Commit,
    Fetch,
    Fetched,
    Offset,
    commit,
    fetch,
)
from moldau.coordinators.transactions.transaction import Identity
from moldau.errors import ErrorCode, KafkaError, ProtocolError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.offset_commit import encode_commit_response
from moldau.wire.uuids import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode
    from moldau.broker.request import RequestContext

_EPOCHS_SINCE = 9
PARTITIONS_MAX = 100_000
"""Whose offsets one request may set or ask for: a second's work, on the loop, and more than any group reads."""
TELL_INLINE_MAX = 500
"""Offsets in an answer that is built at once: a few milliseconds. A thread builds a longer one."""

_MANY_GROUPS_SINCE = 8
_TOPIC_IDS_SINCE = 10
_GROUP_ERROR_SINCE = 2
_LOADING_KNOWN_SINCE = 2
_ABORTABLE_SINCE = 4
_ADDS_SINCE = 5

_BETWEEN_BROKERS = frozenset({ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})

_Refusals = dict[int, ErrorCode]
_FetchedTopic = tuple[str | None, uuid.UUID | None, list[Fetched]]
_FetchedGroup = tuple[Any, ErrorCode, list[_FetchedTopic]]
"""What was asked, and the error of the group, or what it committed."""


# -- committing


def handle_offset_commit(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    offsets, refusals = _offsets(node, request)
    retention = getattr(request, "retention_time", None)
    asked = Commit(
        request.group_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        request.generation_id_or_member_epoch,
        offsets,
        DEFAULT_RETENTION if retention is None else retention // ms(1),
        context.version >= _EPOCHS_SINCE,
    )
    return _commit(node, context, request, asked, refusals)


def handle_txn_offset_commit(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    offsets, refusals = _offsets(node, request)
    asked = Commit(
        request.group_id,
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        getattr(request, "generation_id", -1),
        offsets,
        producer=(request.producer_id, request.producer_epoch),
    )
    try:
        if context.version < _LOADING_KNOWN_SINCE and node.groups.is_loading:
            # Producers before 2.0 stop at the code for "loading" instead of asking again.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        check_group_id(request.group_id)
        node.groups.shard(request.group_id)
        partition = node.find_partition(node.groups.topic, None, node.groups.partition_for(request.group_id))
        _check_producer(partition, request)
        entry = _entry(node, context, request, partition) if offsets else None
        beginning = None if entry is None else entry.begin()
        if entry is not None and beginning is None:
            entry.check(partition)
    except KafkaError as failure:
        return encode_commit_response(context.correlation_id, request, repeat(_as_told(failure.code)))
    if entry is None or beginning is None:
        return _commit(node, context, request, asked, refusals)

    async def commit_when_admitted() -> Any:
        try:
            await beginning
            _check_producer(partition, request)  # it may have been fenced in the meantime
            entry.check(partition)
        except KafkaError as failure:
            return encode_commit_response(context.correlation_id, request, repeat(_as_told(failure.code)))
        response = _commit(node, context, request, asked, refusals)
        return await response if inspect.isawaitable(response) else response

    return commit_when_admitted()


def _entry(node: BrokerNode, context: RequestContext, request: Any, partition: Partition) -> Entry:
    """The group's partition has to be part of the producer's open transaction."""
    admission = Admission.ADD if context.version >= _ADDS_SINCE else Admission.VERIFY
    if context.version < _ABORTABLE_SINCE:
        admission = Admission.VERIFY_OLD
    producer = Identity(request.producer_id, request.producer_epoch)
    return Entry(node, request.transactional_id, producer, (partition,), admission)


def _as_told(code: ErrorCode) -> ErrorCode:
    """What went wrong between brokers is to a producer as if its group were being loaded: it asks again."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code in _BETWEEN_BROKERS else code


def _offsets(node: BrokerNode, request: Any) -> tuple[list[Offset], _Refusals]:
    """The offsets to commit, for partitions that exist."""
    existing, refusals = _sort_out(node, request.topics)
    return [
        Offset(
            name,
            one.partition_index,
            one.committed_offset,
            getattr(one, "committed_leader_epoch", -1),
            one.committed_metadata,
            topic_id,
        )
        for name, topic_id, one in existing
    ], refusals


def _commit(node: BrokerNode, context: RequestContext, request: Any, asked: Commit, refusals: _Refusals) -> Any:
    def respond(codes: Iterable[ErrorCode]) -> bytes:
        return encode_commit_response(context.correlation_id, request, codes)

    if not asked.offsets:
        return respond(_merged(refusals, ()))
    return answer(
        lambda: node.groups.ask(asked.group_id, lambda shard, waiter, now_ms: commit(shard, waiter, asked, now_ms)),
        lambda codes: respond(_merged(refusals, codes)),
        lambda refusal: respond(repeat(refusal.code)),
    )


def _check_producer(partition: Partition, request: Any) -> None:
    """Before anything is remembered of the commit: its batch must not be refused by the log afterwards."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    if producer_id < 0 or epoch < 0:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no producer {producer_id}, epoch {epoch}")
    known = partition.log.producers.producers.get(producer_id)
    if known is not None and epoch < known.epoch:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is older than {known.epoch}")


# -- deleting


def handle_offset_delete(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    existing, refusals = _sort_out(node, request.topics)
    partitions = [(name, one.partition_index) for name, _, one in existing]

    def delete() -> Any:
        group_id = request.group_id
        check_group_id(group_id)
        return node.groups.ask(group_id, lambda shard, waiter, _: delete_offsets(shard, waiter, group_id, partitions))

    def respond(codes: Sequence[ErrorCode]) -> Any:
        code = iter(_merged(refusals, codes))
        topics = tuple(
            schema.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    schema.OffsetDeleteResponsePartition(
                        partition_index=one.partition_index, error_code=error(next(code))
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return schema.OffsetDeleteResponse(error_code=error(ErrorCode.NONE), throttle_time=ms(0), topics=topics)

    def refuse(refusal: KafkaError) -> Any:
        return schema.OffsetDeleteResponse(error_code=error(refusal.code), throttle_time=ms(0), topics=())

    return answer(delete, respond, refuse)


# -- fetching


def handle_offset_fetch(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    has_many = context.version >= _MANY_GROUPS_SINCE
    require_stable = getattr(request, "require_stable", False)
    groups: list[_FetchedGroup] = []
    count = 0
    for group in request.groups if has_many else (request,):
        code, topics = _fetch(node, context, group, require_stable)
        groups.append((group, code, topics))
        count += sum(len(fetched) for _, _, fetched in topics)
        _check_count(count)

    def build() -> Any:
        return _fetched_groups(context, groups) if has_many else _fetched_group(context, *groups[0])

    unsettled = _unsettled(node, groups)
    if unsettled:
        return _tell_when_settled(groups, unsettled, build)
    return build() if count <= TELL_INLINE_MAX else answer_in_thread(node, context, build)


def _unsettled(node: BrokerNode, groups: list[_FetchedGroup]) -> dict[int, Awaitable[Any]]:
    """What the answer has to wait for, by the place of the group: an offset that can still be lost is not told."""
    waits: dict[int, Awaitable[Any]] = {}
    for place, (group, code, _) in enumerate(groups):
        try:
            wait = None if code else node.groups.settled(group.group_id)
        except KafkaError as failure:
            groups[place] = (group, failure.code, [])
        else:
            if wait is not None:
                waits[place] = wait
    return waits


async def _tell_when_settled(
    groups: list[_FetchedGroup], unsettled: dict[int, Awaitable[Any]], build: Callable[[], Any]
) -> Any:
    for place, wait in unsettled.items():
        try:
            await wait
        except KafkaError as failure:
            groups[place] = (groups[place][0], failure.code, [])
    return build()


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
    if code and context.version < _GROUP_ERROR_SINCE:
        topics = [(topic.name, None, _all_with(topic, code)) for topic in request.topics]
    return schema.OffsetFetchResponse(
        throttle_time=ms(0), error_code=error(code), topics=_fetched_topics(schema, "", topics)
    )


def _fetch(
    node: BrokerNode, context: RequestContext, group: Any, require_stable: bool
) -> tuple[ErrorCode, list[_FetchedTopic]]:
    """The error of the group, or what it committed, topic by topic."""
    try:
        shard = node.groups.shard(group.group_id)
        asked = Fetch(
            group_id=group.group_id,
            partitions=None,
            member_id=getattr(group, "member_id", None),
            member_epoch=getattr(group, "member_epoch", -1),
            require_stable=require_stable,
        )
        if group.topics is None:
            by_topic = groupby(fetch(shard, asked), attrgetter("topic"))
            found = [(name, _id_of(node, name), list(offsets)) for name, offsets in by_topic]
            # A topic that is gone has no id that it could be told by.
            return ErrorCode.NONE, [one for one in found if one[1] or context.version < _TOPIC_IDS_SINCE]
        _check_count(sum(len(topic.partition_indexes) for topic in group.topics))
        topics = [(topic, *_named(node, topic)) for topic in group.topics]
        partitions = [
            Asked(name, index, topic_id or ZERO_UUID)
            for topic, name, topic_id in topics
            if name is not None
            for index in topic.partition_indexes
        ]
        offsets = iter(fetch(shard, asked._replace(partitions=partitions)))
    except KafkaError as failure:
        return failure.code, []
    return ErrorCode.NONE, [
        (name, topic_id, _all_with(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        if name is None
        else (name, topic_id, list(islice(offsets, len(topic.partition_indexes))))
        for topic, name, topic_id in topics
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


def _named(node: BrokerNode, topic: Any) -> tuple[str | None, uuid.UUID | None]:
    """Name and id of a topic that a request names in one of the two ways; no name for an id that nobody has."""
    if hasattr(topic, "name"):
        return topic.name, None
    image = None if topic.topic_id is None else node.image.topic_by_id(topic.topic_id)
    return None if image is None else image.name, topic.topic_id


def _id_of(node: BrokerNode, name: str) -> uuid.UUID | None:
    image = node.image.topics.get(name)
    return None if image is None else image.topic_id


def _sort_out(node: BrokerNode, topics: Any) -> tuple[list[tuple[str, uuid.UUID, Any]], _Refusals]:
    """The partitions that exist, and the others, by their place in the request, with the reason to refuse them."""
    _check_count(sum(len(topic.partitions) for topic in topics))
    existing: list[tuple[str, uuid.UUID, Any]] = []
    refusals: _Refusals = {}
    for topic in topics:
        name, topic_id = _named(node, topic)
        refusal = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        image = None if name is None else node.image.topics.get(name)
        count = 0 if image is None else len(image.partitions)
        for partition in topic.partitions:
            if name is not None and 0 <= partition.partition_index < count:
                existing.append((name, topic_id or ZERO_UUID, partition))
            else:
                refusals[len(existing) + len(refusals)] = refusal
    return existing, refusals


def _merged(refusals: _Refusals, codes: Sequence[ErrorCode]) -> Sequence[ErrorCode]:
    """The coordinator's codes, with the refusals in their places."""
    if not refusals:
        return codes
    code = iter(codes)
    return [refusals[place] if place in refusals else next(code) for place in range(len(refusals) + len(codes))]


def _check_count(partitions: int) -> None:
    if partitions > PARTITIONS_MAX:
        raise ProtocolError(f"offsets of {partitions} partitions in one request")

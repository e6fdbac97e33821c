"""ShareFetch (78) and ShareAcknowledge (79): records for members of a share group, and their acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moldau.broker import needs
from moldau.broker.coordination.share_fetching import DelayedShareFetch, Delivery, deliver, readable_bytes
from moldau.broker.coordination.share_partitions import LiveSharePartition
from moldau.broker.coordination.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from moldau.broker.handlers.records.fetch import WAIT_MAX_MS
from moldau.broker.turns import Work
from moldau.coordinators.share.heartbeat import MEMBER_ID_LENGTH_MAX
from moldau.coordinators.share.partition import Ack, AckType, Wanted
from moldau.coordinators.share.state_shard import ShareKey
from moldau.errors import COORDINATOR_UNAVAILABLE, ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.uuids import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasLoop,
    needs.HasMonotonicClock,
    needs.HasTurns,
    needs.HasMetrics,
    needs.HasConnections,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasShareState,
    needs.HasSharePartitions,
    Protocol,
):
    """What these handlers use."""


_RENEW_VERSION_MIN = 2
_RECORD_LIMIT = 1

Outcome = KafkaError | None
Given = dict[ShareKey, "Delivery | KafkaError"]


class _Fetch(NamedTuple):
    """What a ShareFetch asks for, beside its acknowledgements."""

    group_id: str
    member_id: str
    wanted: Wanted
    min_bytes: int
    max_bytes: int
    wait_ms: int


# -- ShareFetch


async def handle_share_fetch(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    try:
        group_id, member_id = _check_member(request)
        _check_renew(request)
        await broker.share_state.ready()
        session = _session(broker, context, request)
    except KafkaError as refusal:
        if refusal.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            # As a fetch that finds nothing: the client tries again at once.
            await asyncio.sleep(min(_ms_of(request.max_wait), WAIT_MAX_MS) / 1000)
        return schema.ShareFetchResponse(
            throttle_time=ms(0),
            error_code=error(refusal.code),
            error_message=refusal.message,
            acquisition_lock_timeout=ms(0),
            responses=(),
            node_endpoints=(),
        )
    epoch = request.share_session_epoch
    acknowledged = await _acknowledge_all(broker, context, request, group_id, member_id)
    given: Given = {}
    if epoch == FINAL_EPOCH:
        broker.share_partitions.release(session)
    elif not getattr(request, "is_renew_ack", False):
        given = await _fetch(broker, session, _asked(broker, group_id, member_id, request))
    lock_ms = broker.share_partitions.group_config(group_id).share_record_lock_duration_ms
    return schema.ShareFetchResponse(
        throttle_time=ms(0),
        error_code=error(ErrorCode.NONE),
        error_message=None,
        acquisition_lock_timeout=ms(lock_ms),
        responses=await broker.turns.finish(_responses(broker, schema, given, acknowledged)),
        node_endpoints=_node_endpoints(broker, context, [*_refused(given), *_refused(acknowledged)]),
    )


def _asked(broker: Broker, group_id: str, member_id: str, request: Any) -> _Fetch:
    exact = getattr(request, "share_acquire_mode", 0) == _RECORD_LIMIT
    max_bytes = min(request.max_bytes, broker.local.config.fetch_max_bytes, broker.connections.send_budget.left)
    wait_ms = min(max(0, _ms_of(request.max_wait)), WAIT_MAX_MS)
    wanted = Wanted(request.max_records, max(1, request.batch_size), exact)
    return _Fetch(group_id, member_id, wanted, request.min_bytes, max_bytes, wait_ms)


def _session(broker: Broker, context: RequestContext, request: Any) -> ShareSession:
    sessions = broker.share_partitions.sessions
    group_id: str = request.group_id
    owner = (group_id, request.member_id)
    named = [
        ShareKey(group_id, topic.topic_id or ZERO_UUID, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if request.share_session_epoch == INITIAL_EPOCH:
        if any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the first request of a share session cannot have acknowledgements"
            )
        return sessions.open(owner, context.connection, named, broker.local.config.group_share_max_share_sessions)
    session = sessions.find(owner, request.share_session_epoch)
    if request.share_session_epoch != FINAL_EPOCH:
        forgotten = [
            ShareKey(group_id, topic.topic_id or ZERO_UUID, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        sessions.change(session, named, forgotten)
    return session


async def _fetch(broker: Broker, session: ShareSession, asked: _Fetch) -> Given:
    if not session.partitions or asked.wanted.max_records <= 0 or asked.max_bytes <= 0:
        return {}
    keys = session.rotated()
    await _load(broker, keys, asked.group_id)
    queues, refused = _find(broker, keys, asked)
    is_last = bool(refused) or asked.wait_ms == 0
    given = {**refused, **_deliver(broker, queues, asked, everything=is_last)}
    if given or is_last:
        return given

    def attempt(woken: Iterable[ShareKey] | None) -> Given | None:
        # Anew each time: what was there may have been given up, what was loading may be there.
        found, failed = _find(broker, keys if woken is None or asked.min_bytes > 1 else woken, asked)
        given = _deliver(broker, found, asked, everything=woken is None) or failed
        waiting.watch(found)
        return given or None

    waiting = DelayedShareFetch(broker.loop, queues, asked.wait_ms, attempt)
    return await waiting.future or {}


async def _load(broker: Broker, keys: Iterable[ShareKey], group_id: str) -> None:
    """Loads the share partitions that are not loaded yet, in turns."""
    config = broker.share_partitions.group_config(group_id)
    new = [key for key in keys if not broker.share_partitions.is_live(key)]
    asked: list[Awaitable[None]] = []
    async for key in broker.turns.each(new):
        with suppress(KafkaError):  # `_find` reports it
            loading = broker.share_partitions.load(key, config)
            if loading is not None:
                asked.append(asyncio.shield(loading))  # who goes away must not take it from the others
    if asked:
        await asyncio.gather(*asked, return_exceptions=True)


def _find(
    broker: Broker, keys: Iterable[ShareKey], asked: _Fetch
) -> tuple[list[LiveSharePartition], dict[ShareKey, Delivery | KafkaError]]:
    config = broker.share_partitions.group_config(asked.group_id)
    found: list[LiveSharePartition] = []
    refused: dict[ShareKey, Delivery | KafkaError] = {}
    for key in keys:
        try:
            found.append(broker.share_partitions.get(key, config))
        except KafkaError as refusal:
            # Clients of ShareFetch know no such error: until the state of the partition is here, they get nothing.
            if refusal.code not in COORDINATOR_UNAVAILABLE:
                refused[key] = refusal
    return found, refused


def _deliver(broker: Broker, queues: Sequence[LiveSharePartition], asked: _Fetch, *, everything: bool) -> Given:
    """What there is, up to the limits; nothing as long as it is less than was asked for, unless it is the last try."""
    committed = broker.share_partitions.group_config(asked.group_id).reads_committed
    now_ms = broker.monotonic_ms()
    if not everything and asked.min_bytes > 1:
        missing = min(asked.min_bytes, asked.max_bytes)
        for live in queues:
            missing -= readable_bytes(live, asked.max_bytes, committed=committed)
        if missing > 0:
            return {}
    given: Given = {}
    bytes_left, records_left = asked.max_bytes, asked.wanted.max_records
    for live in queues:
        if bytes_left <= 0 or records_left <= 0:
            break
        wanted = asked.wanted._replace(max_records=records_left)
        try:
            delivery = deliver(live, asked.member_id, wanted, bytes_left, now_ms, committed=committed)
        except KafkaError as failure:
            given[live.key] = failure
            continue
        if delivery.acquired:
            given[live.key] = delivery
            bytes_left -= len(delivery.records)
            records_left -= sum(one.last - one.first + 1 for one in delivery.acquired)
            broker.share_partitions.arm(live)
    broker.metrics.bytes_fetched += asked.max_bytes - bytes_left
    return given


def _responses(
    broker: Broker, schema: Schema, given: Given, acknowledged: Mapping[ShareKey, Outcome]
) -> Work[tuple[Any, ...]]:
    topics: dict[Any, list[Any]] = {}
    for key in dict.fromkeys([*given, *acknowledged]):
        outcome = given.get(key)
        refusal = outcome if isinstance(outcome, KafkaError) else None
        delivery = outcome if isinstance(outcome, Delivery) else Delivery(b"", ())
        ack_refusal = acknowledged.get(key)
        partition = schema.PartitionData(
            partition_index=key.partition,
            error_code=error(refusal.code if refusal else ErrorCode.NONE),
            error_message=refusal.message if refusal else None,
            acknowledge_error_code=int(ack_refusal.code if ack_refusal else ErrorCode.NONE),
            acknowledge_error_message=ack_refusal.message if ack_refusal else None,
            current_leader=_current_leader(broker, schema, key, refusal or ack_refusal),
            records=delivery.records,
            acquired_records=tuple(
                schema.AcquiredRecords(first_offset=one.first, last_offset=one.last, delivery_count=one.delivery_count)
                for one in delivery.acquired
            ),
        )
        topics.setdefault(key.topic_id, []).append(partition)
        yield
    return tuple(
        schema.ShareFetchableTopicResponse(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in topics.items()
    )


# -- ShareAcknowledge


async def handle_share_acknowledge(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    lock_ms = 0
    acknowledged: dict[ShareKey, Outcome] = {}
    refusal = None
    try:
        group_id, member_id = _check_member(request)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a share session cannot be opened by ShareAcknowledge"
            )
        session = broker.share_partitions.sessions.find((group_id, member_id), request.share_session_epoch)
        lock_ms = broker.share_partitions.group_config(group_id).share_record_lock_duration_ms
        acknowledged = await _acknowledge_all(broker, context, request, group_id, member_id)
        if request.share_session_epoch == FINAL_EPOCH:
            broker.share_partitions.release(session)
    except KafkaError as failure:
        refusal = failure
    topics: dict[Any, list[Any]] = {}
    async for key, outcome in broker.turns.each(acknowledged.items()):
        partition = schema.PartitionData(
            partition_index=key.partition,
            error_code=error(outcome.code if outcome else ErrorCode.NONE),
            error_message=outcome.message if outcome else None,
            current_leader=_current_leader(broker, schema, key, outcome),
        )
        topics.setdefault(key.topic_id, []).append(partition)
    return schema.ShareAcknowledgeResponse(
        throttle_time=ms(0),
        error_code=error(refusal.code if refusal else ErrorCode.NONE),
        error_message=refusal.message if refusal else None,
        acquisition_lock_timeout=ms(lock_ms),
        responses=tuple(
            schema.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in topics.items()
        ),
        node_endpoints=_node_endpoints(broker, context, _refused(acknowledged)),
    )


# -- both


def _refused(outcomes: Mapping[ShareKey, Any]) -> list[ShareKey]:
    """The partitions that another broker leads."""
    return [key for key, outcome in outcomes.items() if _is_elsewhere(outcome)]


def _is_elsewhere(outcome: object) -> bool:
    return isinstance(outcome, KafkaError) and outcome.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def _leader(broker: Broker, key: ShareKey) -> tuple[int, int]:
    """The leader of the partition, and its epoch."""
    topic = broker.metadata.image.topic_by_id(key.topic_id)
    partition = None if topic is None else topic.partition(key.partition)
    return (-1, -1) if partition is None else (partition.leader, partition.leader_epoch)


def _current_leader(broker: Broker, schema: Schema, key: ShareKey, outcome: Outcome) -> Any:
    leader_id, leader_epoch = _leader(broker, key) if _is_elsewhere(outcome) else (0, 0)
    return schema.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)


def _node_endpoints(broker: Broker, context: RequestContext, elsewhere: Sequence[ShareKey]) -> tuple[Any, ...]:
    """Where the leaders of these partitions are: the client need not ask for metadata first."""
    leaders = {_leader(broker, key)[0] for key in elsewhere}
    if not leaders:
        return ()
    return tuple(
        context.schema.NodeEndpoint(node_id=broker_id, host=host, port=port, rack=rack)
        for broker_id, host, port, rack in broker.metadata.endpoints(context.connection.listener)
        if broker_id in leaders
    )


def _check_member(request: Any) -> tuple[str, str]:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the group id is empty")
    if not request.member_id or len(request.member_id) > MEMBER_ID_LENGTH_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return request.group_id, request.member_id


def _check_renew(request: Any) -> None:
    """Fetching may take longer than the lock that was just renewed lasts: a request does one or the other."""
    if getattr(request, "is_renew_ack", False) and (
        request.max_bytes or request.min_bytes or request.max_records or _ms_of(request.max_wait)
    ):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "maxBytes, minBytes, maxRecords and maxWaitMs must be 0 if isRenewAck is true."
        )


async def _acknowledge_all(
    broker: Broker, context: RequestContext, request: Any, group_id: str, member_id: str
) -> dict[ShareKey, Outcome]:
    """The result of the acknowledgements of each partition, once they are durable."""
    may_renew = context.version >= _RENEW_VERSION_MIN and request.is_renew_ack
    outcomes: dict[ShareKey, Outcome] = {}
    writing: list[tuple[ShareKey, Awaitable[Any]]] = []
    places = ((topic.topic_id or ZERO_UUID, partition) for topic in request.topics for partition in topic.partitions)
    async for topic_id, partition in broker.turns.each(places):
        if not partition.acknowledgement_batches:
            continue
        key = ShareKey(group_id, topic_id, partition.partition_index)
        try:
            acks = [_ack(batch, may_renew) async for batch in broker.turns.each(partition.acknowledgement_batches)]
            durable = broker.share_partitions.acknowledge(key, member_id, acks)
            outcomes[key] = None
        except KafkaError as refusal:
            outcomes[key] = refusal
        else:
            if durable is not None:
                writing.append((key, durable))
    for key, durable in writing:  # all of them are under way: together they take as long as the slowest
        try:
            await durable
        except KafkaError as refusal:
            outcomes[key] = refusal
    return outcomes


def _ack(batch: Any, may_renew: bool) -> Ack:
    largest = AckType.RENEW if may_renew else AckType.REJECT
    types = batch.acknowledge_types
    if types and not 0 <= min(types) <= max(types) <= largest:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "invalid acknowledgement type")
    return Ack(batch.first_offset, batch.last_offset, types)


def _ms_of(duration: Any) -> int:
    return int(duration.total_seconds() * 1000)

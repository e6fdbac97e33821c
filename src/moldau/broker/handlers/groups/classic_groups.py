"""JoinGroup, Heartbeat, LeaveGroup and SyncGroup (keys 11 to 14): the members of classic groups.

A join or a sync may wait for other members; its connection waits with it, as in Kafka. A broker with many members
mostly gets heartbeats, which have few different responses: each is encoded once.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.groups.coordinator_replies import answer, wait_for_reply
from moldau.broker.turns import Work
from moldau.coordinators.classic import steps
from moldau.coordinators.classic.events import (
    Heartbeat,
    Join,
    JoinReply,
    Leave,
    Leaver,
    Sync,
    SyncReply,
)
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import encode_response, error, ms, response_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.broker.network.request import RequestContext
    from moldau.coordinators.effects import Effects
    from moldau.coordinators.group_shard import GroupShard


class Broker(needs.HasEnvironment, needs.HasGroups, Protocol):
    """What these handlers use."""


MEMBER_ID_NAME_MAX = 1_000
"""Characters of a client's name in the member id it gets, which has to fit into a string as the name itself does."""

_MEMBER_ID_REQUIRED_VERSION_MIN = 4
_NULL_PROTOCOL_VERSION_MIN = 7
_SKIP_ASSIGNMENT_VERSION_MIN = 9
_SYNC_NAMES_PROTOCOL_VERSION_MIN = 5
_LEAVE_TOGETHER_VERSION_MIN = 3
LEAVERS_PER_STEP = 100


def _asking(broker: Broker, step: Callable[..., Effects], event: Any) -> Callable[[], Any]:
    def run(shard: GroupShard, waiter: Any, now_ms: int) -> Effects:
        return step(shard, waiter, event, now_ms)

    return partial(broker.groups.ask, event.group_id, run)


# -- JoinGroup


def handle_join_group(broker: Broker, context: RequestContext, request: Any) -> Any:
    session_timeout_ms = request.session_timeout // ms(1)
    rebalance_timeout = getattr(request, "rebalance_timeout", None)
    instance_id = getattr(request, "group_instance_id", None)
    client_id = context.client_id or ""
    name = client_id if instance_id is None else instance_id
    event = Join(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=f"{name[:MEMBER_ID_NAME_MAX]}-{broker.environment.new_uuid()}",
        instance_id=instance_id,
        client_id=client_id,
        client_host=f"/{context.connection.peer_host}",
        protocol_type=request.protocol_type,
        protocols=tuple({protocol.name: protocol.metadata for protocol in request.protocols}.items()),
        session_timeout_ms=session_timeout_ms,
        # The first version did not have one yet.
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout is None else rebalance_timeout // ms(1),
        requires_member_id=context.version >= _MEMBER_ID_REQUIRED_VERSION_MIN,
        can_skip_assignment=context.version >= _SKIP_ASSIGNMENT_VERSION_MIN,
    )

    def refuse(refusal: KafkaError) -> Any:
        return _joined(context, JoinReply(refusal.code, event.member_id))

    return answer(_asking(broker, steps.join, event), partial(_joined, context), refuse)


def _joined(context: RequestContext, reply: JoinReply) -> Any:
    schema = context.schema
    return schema.JoinGroupResponse(
        throttle_time=ms(0),
        error_code=error(reply.error),
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name or (None if context.version >= _NULL_PROTOCOL_VERSION_MIN else ""),
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=tuple(
            schema.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ),
    )


# -- SyncGroup


def handle_sync_group(broker: Broker, context: RequestContext, request: Any) -> Any:
    event = Sync(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
    )

    def respond(reply: SyncReply) -> Any:
        return context.schema.SyncGroupResponse(
            throttle_time=ms(0),
            error_code=error(reply.error),
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol_name,
            assignment=reply.assignment,
        )

    def refuse(refusal: KafkaError) -> Any:
        return respond(SyncReply(refusal.code))

    if context.version >= _SYNC_NAMES_PROTOCOL_VERSION_MIN and None in (event.protocol_type, event.protocol_name):
        return respond(SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    return answer(_asking(broker, steps.sync, event), respond, refuse)


# -- Heartbeat


def handle_heartbeat(broker: Broker, context: RequestContext, request: Any) -> Any:
    event = Heartbeat(
        request.group_id, request.member_id, getattr(request, "group_instance_id", None), request.generation_id
    )

    def refuse(refusal: KafkaError) -> bytes:
        # Who is being loaded is alive, for all that is known.
        is_loading = refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return _heartbeat_answer(context, ErrorCode.NONE if is_loading else refusal.code)

    return answer(_asking(broker, steps.heartbeat, event), partial(_heartbeat_answer, context), refuse)


def _heartbeat_answer(context: RequestContext, code: ErrorCode) -> bytes:
    size, rest = _heartbeat_frame(context.version, code)
    return size + context.correlation_id.to_bytes(4, "big", signed=True) + rest


@cache
def _heartbeat_frame(version: int, code: ErrorCode) -> tuple[bytes, bytes]:
    """What stands before and behind the correlation id."""
    schema = response_schema(ApiKey.HEARTBEAT, version)
    frame = encode_response(0, schema.HeartbeatResponse(throttle_time=ms(0), error_code=error(code)))
    return frame[:4], frame[8:]


# -- LeaveGroup


def handle_leave_group(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    schema = context.schema
    if context.version >= _LEAVE_TOGETHER_VERSION_MIN:
        leavers = tuple(Leaver(one.member_id, one.group_instance_id) for one in request.members)
    else:
        leavers = (Leaver(request.member_id, None),)

    codes: list[ErrorCode] = []
    try:
        for start in range(0, max(1, len(leavers)), LEAVERS_PER_STEP):
            part = leavers[start : start + LEAVERS_PER_STEP]
            reply = _asking(broker, steps.leave, Leave(request.group_id, part))()
            codes += yield from wait_for_reply(reply)
            yield
    except KafkaError as refusal:
        return schema.LeaveGroupResponse(throttle_time=ms(0), error_code=error(refusal.code), members=())
    if context.version < _LEAVE_TOGETHER_VERSION_MIN:
        return schema.LeaveGroupResponse(throttle_time=ms(0), error_code=error(codes[0]))
    members = []
    for leaver, code in zip(leavers, codes, strict=True):
        members.append(
            schema.MemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error(code)
            )
        )
        yield
    return schema.LeaveGroupResponse(throttle_time=ms(0), error_code=error(ErrorCode.NONE), members=tuple(members))

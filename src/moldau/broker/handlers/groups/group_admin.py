"""DescribeGroups, ListGroups and DeleteGroups (keys 15, 16, 42).

ListGroups and DeleteGroups are for groups of all protocols, DescribeGroups only for classic groups.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.off_loop import answer_in_thread
from moldau.broker.handlers.groups.consumer_groups import GROUP_OPERATIONS
from moldau.broker.handlers.queues.share_groups import delete_states
from moldau.coordinators.classic.base import State
from moldau.coordinators.classic.group import ClassicGroup
from moldau.coordinators.group import Group
from moldau.coordinators.offsets.cleanup import delete_group
from moldau.coordinators.share.group import ShareGroup
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import Schema, error, ms
from moldau.wire.metadata import OPERATIONS_NOT_ASKED

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasTurns, needs.HasThreads, needs.HasGroups, needs.HasShareState, needs.HasSharePartitions, Protocol
):
    """What these handlers use."""


_NOT_FOUND_VERSION_MIN = 6
_DEAD = "Dead"
"""What a group that is not there is called."""


# -- DescribeGroups


async def handle_describe_groups(broker: Broker, context: RequestContext, request: Any) -> Any:
    asked = getattr(request, "include_authorized_operations", False)
    operations = GROUP_OPERATIONS if asked else OPERATIONS_NOT_ASKED
    group_ids = dict.fromkeys(request.groups)  # a group may be large, and each answer is kept until all are there
    groups = [_described(broker, context, one, operations) async for one in broker.turns.each(group_ids)]
    return context.schema.DescribeGroupsResponse(throttle_time=ms(0), groups=tuple(groups))


def _described(broker: Broker, context: RequestContext, group_id: str, operations: int) -> Any:
    schema = context.schema
    try:
        group = broker.groups.shard(group_id).groups.get(group_id)
    except KafkaError as refusal:
        return _not_described(schema, group_id, refusal.code, None, "")
    if isinstance(group, ClassicGroup):
        return _described_group(schema, group, operations)
    if context.version < _NOT_FOUND_VERSION_MIN:
        return _not_described(schema, group_id, ErrorCode.NONE, None, _DEAD)
    why = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
    return _not_described(schema, group_id, ErrorCode.GROUP_ID_NOT_FOUND, why, _DEAD)


def _not_described(schema: Schema, group_id: str, code: ErrorCode, why: str | None, state: str) -> Any:
    return schema.DescribedGroup(
        error_code=error(code),
        error_message=why,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=OPERATIONS_NOT_ASKED,
    )


def _described_group(schema: Schema, group: ClassicGroup, operations: int) -> Any:
    # During a rebalance there is no agreed protocol yet, so metadata and assignments cannot be interpreted.
    protocol = group.protocol_name if group.state is State.STABLE else None
    return schema.DescribedGroup(
        error_code=error(ErrorCode.NONE),
        error_message=None,
        group_id=group.group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=protocol or "",
        members=tuple(
            schema.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=b"" if protocol is None else member.metadata(protocol),
                member_assignment=member.assignment,
            )
            for member in group.members
        ),
        authorized_operations=operations,
    )


# -- ListGroups


async def handle_list_groups(broker: Broker, context: RequestContext, request: Any) -> bytes:
    schema = context.schema
    states = {state.strip().lower() for state in getattr(request, "states_filter", ())}
    types = {type_.strip().lower() for type_ in getattr(request, "types_filter", ())}

    def is_wanted(group: Group) -> bool:
        return (not states or group.state_name.lower() in states) and (not types or group.type.value in types)

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if broker.groups.is_loading else ErrorCode.NONE
    found = [
        (group.group_id, group.protocol_type, group.state_name, group.type.value)
        async for _, shard in broker.turns.each(broker.groups.shards())
        for group in tuple(shard.groups.values())
        if not code and is_wanted(group)
    ]

    def build() -> Any:
        listed = tuple(
            schema.ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=type_)
            for group_id, protocol_type, state, type_ in found
        )
        return schema.ListGroupsResponse(throttle_time=ms(0), error_code=error(code), groups=listed)

    return await answer_in_thread(broker, context, build)


# -- DeleteGroups


async def handle_delete_groups(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    results = []
    async for group_id in broker.turns.each(dict.fromkeys(request.groups_names)):
        code = ErrorCode.NONE
        try:
            await _delete(broker, group_id)
        except KafkaError as refusal:
            code = refusal.code
        results.append(schema.DeletableGroupResult(group_id=group_id, error_code=error(code)))
    return schema.DeleteGroupsResponse(throttle_time=ms(0), results=tuple(results))


async def _delete(broker: Broker, group_id: str) -> None:
    group = broker.groups.shard(group_id).groups.get(group_id)
    if isinstance(group, ShareGroup):
        group.validate_delete()
        await delete_states(broker, group_id, group.state_keys())
    reply = broker.groups.ask(group_id, lambda shard, waiter, _: delete_group(shard, waiter, group_id))
    if inspect.isawaitable(reply):
        await reply

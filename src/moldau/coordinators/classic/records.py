"""The record of a classic group in `__consumer_offsets`: its last generation, with every member's assignment."""

from __future__ import annotations

from moldau.wire.state_records import (
    BYTES,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    array_of,
    state_key,
    state_struct,
    state_value,
    wire,
)


@state_key(kind=2)
class GroupMetadataKey:
    group: str = wire(STRING)


@state_struct
class MemberMetadata:
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=3, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, since=1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: bytes = wire(BYTES)
    assignment: bytes = wire(BYTES)


@state_value(versions=(0, 4), flexible_from=4, written=3)
class GroupMetadataValue:
    protocol_type: str = wire(STRING)
    generation: int = wire(INT32)
    protocol: str | None = wire(NULLABLE_STRING)
    leader: str | None = wire(NULLABLE_STRING)
    current_state_timestamp: int = wire(INT64, since=2, default=-1)
    members: tuple[MemberMetadata, ...] = wire(array_of(MemberMetadata))


KINDS: dict[type, type] = {GroupMetadataKey: GroupMetadataValue}

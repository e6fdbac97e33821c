"""The record of a committed offset in `__consumer_offsets`."""

from __future__ import annotations

import uuid

from moldau.wire.state_records import (
    INT32,
    INT64,
    STRING,
    UUID_TYPE,
    state_key,
    state_value,
    wire,
)
from moldau.wire.uuids import ZERO_UUID

NO_EXPIRY = -1


@state_key(kind=1)
class OffsetCommitKey:
    group: str = wire(STRING)
    topic: str = wire(STRING)
    partition: int = wire(INT32)


def _version(value: OffsetCommitValue) -> int:
    """Only version 1 has room for a time at which the offset expires, which clients stopped sending in 2018."""
    return 4 if value.expire_timestamp == NO_EXPIRY else 1


@state_value(versions=(0, 4), flexible_from=4, written=_version)
class OffsetCommitValue:
    offset: int = wire(INT64)
    leader_epoch: int = wire(INT32, since=3, default=-1)
    metadata: str = wire(STRING)
    commit_timestamp: int = wire(INT64)
    expire_timestamp: int = wire(INT64, since=1, until=1, default=NO_EXPIRY)
    topic_id: uuid.UUID = wire(UUID_TYPE, since=4, tag=0, default=ZERO_UUID)
    """Known when the commit named its topic by id; zero otherwise."""


KINDS: dict[type, type] = {OffsetCommitKey: OffsetCommitValue}

"""Which topics a member of a `consumer` group reads: the one thing the broker looks up in what members send each other.

A subscription begins, in all versions, with its version and the list of topics; the rest is for the members' assignors.
"""

from __future__ import annotations

import struct

from moldau.errors import ProtocolError
from moldau.wire.primitives import MALFORMED

CONSUMER_PROTOCOL = "consumer"
"""The protocol type whose members' metadata are subscriptions; Kafka Connect's workers have another one."""

_START = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def topics_of(subscription: bytes) -> set[str]:
    """Raises ProtocolError for what is no subscription."""
    try:
        version, count = _START.unpack_from(subscription)
        if version < 0 or not 0 <= count <= len(subscription):
            raise ProtocolError(f"invalid subscription: version {version}, {count} topics")
        topics = set()
        pos = _START.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, pos)
            pos += _LENGTH.size
            if not 0 <= length <= len(subscription) - pos:
                raise ProtocolError(f"invalid subscription: a topic name of {length} bytes")
            topics.add(str(subscription[pos : pos + length], "utf-8"))
            pos += length
    except MALFORMED as error:
        raise ProtocolError(f"invalid subscription: {error}") from error
    return topics

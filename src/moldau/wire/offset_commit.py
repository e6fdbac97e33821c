"""Responses to OffsetCommit and TxnOffsetCommit, packed by hand: every consumer commits, every few seconds or records.

    throttle time 4 · topics: name or (OffsetCommit 10) id 16 · partitions: index 4 · error code 2

Both have the same form; OffsetCommit 2 has no throttle time. In flexible versions counts and lengths are varints and
each structure ends with its tagged fields, of which there are none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from moldau.wire.apis import ApiKey
from moldau.wire.primitives import INT32, write_compact_string, write_string, write_uvarint
from moldau.wire.uuids import ZERO_ID

_FRAME_START = struct.Struct(">ii")
_PARTITION = struct.Struct(">ih")
_FLEXIBLE_PARTITION = struct.Struct(">ihx")
_NO_THROTTLING = bytes(4)
_THROTTLE_TIME_VERSION_MIN = 3
_TOPIC_ID_VERSION_MIN = 10


def encode_commit_response(correlation_id: int, request: Any, codes: Iterable[int]) -> bytes:
    """A whole frame; `codes` has one for each partition of the request, in its order."""
    key, version = request.__api_key__, request.__version__
    flexible = request.__flexible__
    pack = (_FLEXIBLE_PARTITION if flexible else _PARTITION).pack
    by_id = key == ApiKey.OFFSET_COMMIT and version >= _TOPIC_ID_VERSION_MIN
    code = iter(codes)
    out = bytearray(8)
    if flexible:
        out.append(0)
    if key != ApiKey.OFFSET_COMMIT or version >= _THROTTLE_TIME_VERSION_MIN:
        out += _NO_THROTTLING
    out += _count(request.topics, flexible)
    for topic in request.topics:
        if by_id:
            out += topic.topic_id.bytes if topic.topic_id is not None else ZERO_ID
        else:
            out += write_compact_string(topic.name) if flexible else write_string(topic.name)
        out += _count(topic.partitions, flexible)
        for partition in topic.partitions:
            out += pack(partition.partition_index, next(code))
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    _FRAME_START.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def _count(items: tuple[Any, ...], flexible: bool) -> bytes:
    return write_uvarint(len(items) + 1) if flexible else INT32.pack(len(items))

"""ApiVersions, hand-packed for every version (0 to 4): the first question of every connection.

Hand-packed not for its own speed, but so that a broker answers it before the protocol package is imported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import Api
from moldau.wire.primitives import (
    INT32,
    INT64,
    MALFORMED,
    read_compact_string,
    skip_tags,
    write_compact_string,
    write_tags,
    write_uvarint,
)

_FLEXIBLE_VERSION_MIN = 3
_THROTTLE_VERSION_MIN = 1

_START = struct.Struct(">iih")
_ENTRY = struct.Struct(">hhh")
_LEVELS = struct.Struct(">hhb")  # and no tags

_NO_FEATURES: Mapping[str, int] = MappingProxyType({})
_FEATURES_EPOCH = 0  # they never change


def parse_api_versions_request(version: int, body: memoryview) -> tuple[str, str]:
    """The client's software name and version; empty before version 3, which has no such fields."""
    if version < _FLEXIBLE_VERSION_MIN:
        return "", ""
    try:
        name, pos = read_compact_string(body, 0)
        software_version, pos = read_compact_string(body, pos)
        skip_tags(body, pos)
    except MALFORMED as error:
        raise ProtocolError(f"malformed ApiVersions v{version} request: {error}") from error
    if name is None or software_version is None:
        raise ProtocolError("ApiVersions: the client's software name or version is null")
    return name, software_version


def encode_api_versions_response(
    version: int,
    correlation_id: int,
    apis: Iterable[Api],
    error_code: ErrorCode = ErrorCode.NONE,
    features: Mapping[str, int] = _NO_FEATURES,
) -> bytes:
    """A whole response frame. Its header has no tags in any version: the client does not know yet what we speak.

    `features` are the levels that are in force in the whole cluster.
    """
    entries = [_ENTRY.pack(api.key, api.advertised_min, api.max_version) for api in apis]
    if version >= _FLEXIBLE_VERSION_MIN:
        body = write_uvarint(len(entries) + 1) + b"".join(entry + b"\0" for entry in entries)
    else:
        body = INT32.pack(len(entries)) + b"".join(entries)
    if version >= _THROTTLE_VERSION_MIN:
        body += INT32.pack(0)
    if version >= _FLEXIBLE_VERSION_MIN:
        body += write_tags(_feature_tags(features))
    return _START.pack(6 + len(body), correlation_id, error_code) + body


def _feature_tags(features: Mapping[str, int]) -> list[tuple[int, bytes]]:
    if not features:
        return []
    count = write_uvarint(len(features) + 1)
    # The same bytes twice: what is supported is what is in force, and no other level.
    levels = count + b"".join(
        write_compact_string(name) + _LEVELS.pack(level, level, 0) for name, level in features.items()
    )
    return [(0, levels), (1, INT64.pack(_FEATURES_EPOCH)), (2, levels)]

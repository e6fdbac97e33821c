"""ApiVersions, hand-packed for every version (0 to 4): the first question of every connection.

Hand-packed not for its own speed, but so that a broker answers it before the protocol package is imported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import Api
from moldau.wire.primitives import INT32, MALFORMED, read_compact_string, skip_tags, write_uvarint

_FLEXIBLE_FROM = 3
_THROTTLE_FROM = 1

_START = struct.Struct(">iih")
_ENTRY = struct.Struct(">hhh")


def parse_api_versions_request(version: int, body: memoryview) -> tuple[str, str]:
    """The client's software name and version; empty before version 3, which has no such fields."""
    if version < _FLEXIBLE_FROM:
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
    version: int, correlation_id: int, apis: Iterable[Api], error_code: ErrorCode = ErrorCode.NONE
) -> bytes:
    """A whole response frame. Its header has no tags in any version: the client does not know yet what we speak."""
    entries = [_ENTRY.pack(api.key, api.advertised_min, api.max_version) for api in apis]
    if version >= _FLEXIBLE_FROM:
        body = write_uvarint(len(entries) + 1) + b"".join(entry + b"\0" for entry in entries)
    else:
        body = INT32.pack(len(entries)) + b"".join(entries)
    if version >= _THROTTLE_FROM:
        body += INT32.pack(0)
    if version >= _FLEXIBLE_FROM:
        body += b"\0"
    return _START.pack(6 + len(body), correlation_id, error_code) + body

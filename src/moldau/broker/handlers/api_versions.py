"""ApiVersions (key 18): the APIs and versions that a client may use."""

from __future__ import annotations

import re
from collections.abc import Collection

from moldau.broker.network.request import RequestContext
from moldau.errors import ErrorCode
from moldau.wire.api_versions import encode_api_versions_response, parse_api_versions_request
from moldau.wire.apis import APIS, Api, ApiKey

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_VERSION_MIN = 3

FEATURES = {"group.version": 1, "share.version": 1, "transaction.version": 2}
"""What clients ask for by name before they use it, and the level of it that is served."""


def answer_api_versions(context: RequestContext, body: memoryview, apis: Collection[Api]) -> bytes:
    """`apis` are those that are advertised to the client."""
    version, correlation_id = context.version, context.correlation_id
    if not APIS[ApiKey.API_VERSIONS].supports(version):
        # A newer client's first question: answered in version 0 with the whole table, so that it can ask again.
        return encode_api_versions_response(0, correlation_id, apis, ErrorCode.UNSUPPORTED_VERSION)
    name, software_version = parse_api_versions_request(version, body)
    if version >= _SOFTWARE_VERSION_MIN:
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            return encode_api_versions_response(version, correlation_id, (), ErrorCode.INVALID_REQUEST)
        context.connection.software = f"{name} {software_version}"
    return encode_api_versions_response(version, correlation_id, apis, features=FEATURES)

"""ApiVersions (key 18): what can be asked of this broker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moldau.broker.cluster.forwarding import is_from_broker
from moldau.broker.served import FOR_CLIENTS, SERVED
from moldau.errors import ErrorCode
from moldau.wire.api_versions import encode_api_versions_response, parse_api_versions_request

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.broker.node import BrokerNode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_SINCE = 3

FEATURES = {"group.version": 1, "share.version": 1, "transaction.version": 2}
"""What clients ask for by name before they use it, and the level of it that is served."""


def handle_api_versions(node: BrokerNode, context: RequestContext, body: memoryview) -> bytes:
    name, software_version = parse_api_versions_request(context.version, body)
    if context.version >= _SOFTWARE_SINCE:
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            return encode_api_versions_response(context.version, context.correlation_id, (), ErrorCode.INVALID_REQUEST)
        context.connection.software = f"{name} {software_version}"
    told = (SERVED if is_from_broker(context.client_id) else FOR_CLIENTS).values()
    return encode_api_versions_response(context.version, context.correlation_id, told, features=FEATURES)


def unsupported_version(context: RequestContext) -> bytes:
    """A newer client's first question: answered in version 0 with the whole table, so that it can ask again."""
    return encode_api_versions_response(0, context.correlation_id, FOR_CLIENTS.values(), ErrorCode.UNSUPPORTED_VERSION)

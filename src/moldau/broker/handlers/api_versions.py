"""ApiVersions (key 18): what can be asked of this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, encode_response, error, ms, response_schema

if TYPE_CHECKING:
    from moldau.broker.dispatch import RequestContext
    from moldau.broker.node import BrokerNode


def handle_api_versions(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    if context.version >= 3:
        context.connection.software = f"{request.client_software_name} {request.client_software_version}"
    return _response(context.schema, ErrorCode.NONE)


def unsupported_version(context: RequestContext) -> bytes:
    """A newer client's first question: answered in version 0 with the whole table, so that it can ask again."""
    return encode_response(
        context.correlation_id, _response(response_schema(ApiKey.API_VERSIONS, 0), ErrorCode.UNSUPPORTED_VERSION)
    )


def _response(schema: Schema, code: ErrorCode) -> Any:
    from moldau.broker.dispatch import SERVED  # the table imports this handler

    return schema.ApiVersionsResponse(
        error_code=error(code),
        api_keys=tuple(
            schema.ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in SERVED.values()
        ),
        throttle_time=ms(0),
    )

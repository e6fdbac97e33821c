"""Requests that this broker does not support. The log says which client sent them, and what to use instead.

Such a client is disconnected, reconnects and tries again, many times a second, so its line is logged once a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from moldau.broker.network.request import RequestContext
from moldau.errors import UnservedRequestError
from moldau.log_limits import LogLimit
from moldau.wire.apis import APIS, Api, ApiKey

logger = logging.getLogger(__name__)

_CLIENT_ID_MAX = 200
_RELEASES: dict[int, tuple[str, ...]] = {
    ApiKey.PRODUCE: ("0.8", "0.9", "0.10"),
    ApiKey.FETCH: ("0.8", "0.9", "0.10.0", "0.10.1 or 0.10.2"),
    ApiKey.LIST_OFFSETS: ("0.8 to 0.10.0",),
    ApiKey.OFFSET_COMMIT: ("0.8.1", "0.8.2"),
    ApiKey.OFFSET_FETCH: ("0.8.1",),
    ApiKey.CREATE_TOPICS: ("0.10.1", "0.10.2"),
    ApiKey.DELETE_TOPICS: ("0.10.1 or 0.10.2",),
}
"""The Kafka releases whose clients send the versions from 0 on that are not served."""
_USE = (
    "use a client of Kafka 0.11 or newer (librdkafka 1.0 or newer), "
    "and remove a fixed API version (api_version, broker.version.fallback) from its configuration"
)


class UnsupportedRequests:
    def __init__(self, timer: Callable[[], float]) -> None:
        self._limit = LogLimit(clock=timer)

    def refuse(self, context: RequestContext, served: Api | None) -> UnservedRequestError:
        """The error to raise. It is logged at most once a minute for each client."""
        message = _describe(context.key, context.version, served)
        client = (context.client_id or "")[:_CLIENT_ID_MAX]
        address = context.connection.peer_host
        if self._limit.allows((client, address)):
            logger.warning(message, extra={"client": client, "address": address})
        return UnservedRequestError(message)


def _describe(key: int, version: int, served: Api | None) -> str:
    if served is None:
        return f"client requested {APIS[key].name} v{version}, which this broker does not support"
    requested = f"it requested {served.name} v{version}"
    if version > served.max_version:
        return (
            f"client is too new: {requested}, but this broker supports versions up to v{served.max_version}; "
            "clients that negotiate versions (ApiVersions) work"
        )
    releases = _RELEASES.get(key, ())
    release = f" (Kafka {releases[version]})" if 0 <= version < len(releases) else ""
    return f"client is too old: {requested}{release}, but this broker supports v{served.min_version} and later; {_USE}"

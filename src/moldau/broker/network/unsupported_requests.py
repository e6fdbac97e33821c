"""Requests that this broker does not serve: one log line for each client, which says what it is and what to use.

Such a client is disconnected, connects again and asks again, many times a second.
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
        """The error to raise; logged already, if this client's line is due."""
        what = _what(context.key, context.version, served)
        client = (context.client_id or "")[:_CLIENT_ID_MAX]
        address = context.connection.peer_host
        if self._limit.allows((client, address)):
            logger.warning(what, extra={"client": client, "address": address})
        return UnservedRequestError(what)


def _what(key: int, version: int, served: Api | None) -> str:
    if served is None:
        return f"a client asks for {APIS[key].name} v{version}, which this broker does not have"
    if version > served.max_version:
        return (
            f"a client is too new for this broker: it asks for {served.name} v{version}, and v{served.max_version} is "
            "the newest here; clients that ask for the versions first (ApiVersions) work"
        )
    releases = _RELEASES.get(key, ())
    of = f" as a client of Kafka {releases[version]} does" if 0 <= version < len(releases) else ""
    return (
        f"a client is too old for this broker: it asks for {served.name} v{version}{of}, and v{served.min_version} is "
        f"the oldest here; {_USE}"
    )

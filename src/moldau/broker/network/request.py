"""The context of a request: its header and its connection."""

from __future__ import annotations

from moldau.broker.network.client_connection import ClientConnection
from moldau.wire.messages import Schema, response_schema


class RequestContext:
    """What a handler may know of a request beside its message."""

    __slots__ = ("client_id", "connection", "correlation_id", "key", "version")

    def __init__(
        self, key: int, version: int, correlation_id: int, client_id: str | None, connection: ClientConnection
    ) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.connection = connection

    @property
    def is_from_broker(self) -> bool:
        """By its client id: a broker calls itself `broker-<id>`."""
        return self.client_id is not None and self.client_id.startswith("broker-")

    @property
    def schema(self) -> Schema:
        """The classes of this request's response, in its version."""
        return response_schema(self.key, self.version)

"""A row of the table of APIs: the handler, who may use the API, and how large a request may be.

The table is in `handlers/api_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from moldau.broker.network.request import RequestContext
from moldau.wire.apis import APIS, Api, ApiKey

BrokerT_contra = TypeVar("BrokerT_contra", contravariant=True)

BYTES_MAX = 8 * 1024 * 1024
"""Only Produce carries data. A longer message of any other kind is an attack or a mistake."""
ENTRIES_MAX = 50_000
"""For all arrays of a request together. An entry of one byte becomes an object of a hundred bytes: 8 MB of them would
take many seconds and a gigabyte of memory. Going through 50,000 takes about 10 ms."""


class Audience(Enum):
    """To whom ApiVersions advertises an API."""

    CLIENTS = "clients and brokers"
    BROKERS = "brokers only; handlers refuse everybody else"
    NOBODY = "nobody: the answer is always an error"


@dataclass(frozen=True, slots=True)
class ServedApi(Generic[BrokerT_contra]):
    """One row of the table of APIs."""

    key: ApiKey
    handler: Callable[[BrokerT_contra, RequestContext, Any], Any]
    is_raw: bool = False
    """Whether the handler takes the request's bytes and returns the answer's, instead of messages."""
    bytes_max: int = BYTES_MAX
    """Longer requests are rejected unread."""
    entries_max: int = ENTRIES_MAX
    """The most entries that all arrays of a request may have together."""
    is_forwarded: bool = False
    """Whether brokers send a client's request on to the controller."""
    audience: Audience = Audience.CLIENTS
    api: Api = field(init=False)
    """Its name and the versions that are served: all that Kafka has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "api", APIS[self.key])

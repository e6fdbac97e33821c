"""Where to connect and how: Java-style client properties, read once into typed fields.

Keys that only mean something to a producer or a consumer are left alone here; see `librdkafka`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moldau.client.security import Security
from moldau.errors import ConfigError

# The largest answer accepted from a broker: a hundred times the metadata of 100,000 partitions would need,
# small enough that a peer that speaks another protocol ("HTTP" as a length is 1.2 GB) is refused at once.
RESPONSE_BYTES_MAX = 512 * 1024 * 1024

_CLIENT_ID = "moldau-admin"


class ClientConfig(NamedTuple):
    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = _CLIENT_ID
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000  # all tries of one call together (default.api.timeout.ms)
    connection_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    security: Security = Security()

    @property
    def bootstrap_server(self) -> str:
        """One of them, as commands take it: for hints."""
        host, port = self.bootstrap_servers[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @classmethod
    def from_properties(cls, bootstrap_servers: str, props: Mapping[str, str]) -> ClientConfig:
        """`bootstrap_servers` wins over the properties' own `bootstrap.servers`, as in Kafka's commands."""
        servers = bootstrap_servers or props.get("bootstrap.servers", "")
        return cls(
            bootstrap_servers=parse_servers(servers),
            client_id=props.get("client.id", _CLIENT_ID),
            request_timeout_ms=_positive(props, "request.timeout.ms", 30_000),
            api_timeout_ms=_positive(props, "default.api.timeout.ms", 60_000),
            connection_timeout_ms=_positive(props, "socket.connection.setup.timeout.ms", 10_000),
            retry_backoff_ms=_positive(props, "retry.backoff.ms", 100),
            security=Security.from_properties(props),
        )


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """`host1:9092,host2:9092` (also `PLAINTEXT://host:9092` and `[::1]:9092`) as pairs."""
    servers = tuple(_parse_server(part.strip()) for part in text.split(",") if part.strip())
    if not servers:
        raise ConfigError(f"bootstrap servers '{text}': expected at least one host:port, for example localhost:9092")
    return servers


def _parse_server(text: str) -> tuple[str, int]:
    address = text.partition("://")[2] or text
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap server '{text}': expected host:port, for example localhost:9092")
    return host, int(port)


def _positive(props: Mapping[str, str], key: str, default: int) -> int:
    text = props.get(key, str(default)).strip()
    if not text.isdigit() or int(text) == 0:
        raise ConfigError(f"{key}={text}: expected a positive number of milliseconds")
    return int(text)

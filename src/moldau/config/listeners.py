"""Listeners: `NAME://host:port` entries and the security protocol of each name. No socket is opened here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moldau.config.keys import parse_csv_map
from moldau.errors import ConfigError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""In the order of Kafka's numbers of them."""
# What this broker can serve today. A listener that asks for more must stop the start: opened as plain text it
# would carry what its owner believes to be encrypted or authenticated.
SERVED_PROTOCOLS = frozenset({"PLAINTEXT"})

EVERY_INTERFACE = frozenset({"", "0.0.0.0", "::"})
"""Hosts of a listener that is open to every network of the machine."""

_ENTRY = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


class Listener(NamedTuple):
    """One entry of `listeners` or `advertised.listeners`; an empty host means every interface."""

    name: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(key_name: str, text: str) -> dict[str, str]:
    protocols = {}
    for name, protocol in parse_csv_map(key_name, text).items():
        if protocol.upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"Invalid value {text} for configuration {key_name}: {protocol} is not a security protocol; "
                f"use one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        protocols[name.upper()] = protocol.upper()
    return protocols


def parse_listeners(
    key_name: str, entries: Iterable[str], protocols: Mapping[str, str], *, distinct_ports: bool
) -> tuple[Listener, ...]:
    listeners: list[Listener] = []
    for entry in entries:
        listener = _parse_listener(key_name, entry, protocols)
        for other in listeners:
            if other.name == listener.name:
                raise ConfigError(f"{key_name}: the listener name {listener.name} is used twice; names must be unique")
            if distinct_ports and listener.port == other.port != 0 and _overlap(other, listener):
                raise ConfigError(f"{key_name}: {other} and {listener} use the same port; use another one")
        listeners.append(listener)
    return tuple(listeners)


def _parse_listener(key_name: str, entry: str, protocols: Mapping[str, str]) -> Listener:
    match = _ENTRY.fullmatch(entry)
    if match is None or not match[1] or not 0 <= int(match[3]) <= 65535:
        raise ConfigError(
            f"Invalid value {entry} for configuration {key_name}: expected NAME://host:port "
            "with a port from 0 to 65535, for example PLAINTEXT://127.0.0.1:9092"
        )
    name = match[1].upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(
            f"{key_name}: no security protocol defined for listener {name}; "
            f"add {name}:PLAINTEXT to listener.security.protocol.map"
        )
    return Listener(name, match[2], int(match[3]), protocol)


def _overlap(one: Listener, other: Listener) -> bool:
    """Whether two listeners would bind one address; IPv4 beside IPv6 on one port is fine, as in Kafka."""
    if one.host in EVERY_INTERFACE or other.host in EVERY_INTERFACE:
        return (":" in one.host) == (":" in other.host) or "" in (one.host, other.host)
    return one.host == other.host

"""Brokers of a cluster in the event loop of a test, which can look inside of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moldau.broker.environment import REAL, Environment
from moldau.broker.server import Server
from moldau.config.broker import BrokerConfig


def server_of(folder: Path, node_id: int, properties: Mapping[str, object], environment: Environment = REAL) -> Server:
    """Not started yet. Brokers of the same folder are a cluster."""
    usual = {
        "node.id": node_id,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": folder / f"data-{node_id}",
        "moldau.metadata.dir": folder / "metadata",
    }
    given = {name: str(value) for name, value in {**usual, **properties}.items()}
    return Server(BrokerConfig.from_properties(given, strict=True)[0], environment)

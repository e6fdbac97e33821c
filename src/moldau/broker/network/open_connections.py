"""The open connections: how many there may be, and which are closed because they are idle, slow or stuck."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import Counter

from moldau.broker.network.byte_budget import ByteBudget
from moldau.broker.network.client_connection import CLOSE_GRACE_S, ClientConnection
from moldau.config.broker import BrokerConfig

SWEEP_INTERVAL_S = 5.0
"""How often idle and too slow connections are looked for; each is so closed at most this much late."""

UNSENT_MAX_BYTES = 256 * 1024 * 1024
"""Answers in memory that clients do not read. Beyond it a fetch gets one batch at a time, whatever it asks for:
forty clients that ask for 55 MB each and never read would otherwise cost 2 GB."""
SLOW_READER_MAX_S = 10.0
"""How long a client may leave its answer unread once that limit is reached. One that only pauses connects again."""


class OpenConnections:
    def __init__(self, config: BrokerConfig) -> None:
        self._open: dict[ClientConnection, None] = {}
        self._per_ip: Counter[str] = Counter()
        budget_bytes = config.queued_max_request_bytes
        self.receive_budget = ByteBudget(budget_bytes if budget_bytes > 0 else sys.maxsize)
        self.send_budget = ByteBudget(UNSENT_MAX_BYTES)
        self.refused = 0
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Takes the limits in force; those who are connected already stay."""
        self._max = config.max_connections
        self._max_per_ip = config.max_connections_per_ip
        self._limits_by_ip = config.connection_limits_by_ip
        idle_ms = config.connections_max_idle_ms
        self._idle_max_s = idle_ms / 1000 if idle_ms >= 0 else math.inf

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: ClientConnection) -> bool:
        """Counts a new connection in; False when it is one too many and has to be closed."""
        self._open[connection] = None
        host = connection.peer_host
        self._per_ip[host] += 1
        if len(self._open) > self._max or self._per_ip[host] > self._limits_by_ip.get(host, self._max_per_ip):
            self.refused += 1
            return False
        return True

    def remove(self, connection: ClientConnection) -> None:
        if connection in self._open:
            del self._open[connection]
            self._per_ip[connection.peer_host] -= 1
            if not self._per_ip[connection.peer_host]:
                del self._per_ip[connection.peer_host]

    def sweep(self, now_s: float) -> None:
        for connection in tuple(self._open):
            if connection.closing:
                if now_s - connection.closing_since_s > CLOSE_GRACE_S:
                    connection.abort()
                continue
            paused_s = now_s - connection.write_paused_since_s if connection.write_paused_since_s else 0.0
            if paused_s > SLOW_READER_MAX_S and not self.send_budget.left:
                connection.close("client does not read its responses, and their memory is needed for others")
                connection.abort()
                continue
            why = connection.overdue(now_s, self._idle_max_s)
            if why is not None:
                connection.close(why, logging.DEBUG)
            elif now_s - connection.last_active_s > SWEEP_INTERVAL_S:
                connection.shrink()

    async def drain(self, timeout_s: float) -> None:
        """Lets the answers under way leave, then closes every connection."""
        leaving = [asyncio.ensure_future(self._leave(connection)) for connection in self._open]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=timeout_s)
            for task in late:
                task.cancel()
        for connection in tuple(self._open):
            connection.abort()

    async def _leave(self, connection: ClientConnection) -> None:
        await connection.drained()
        await connection.gone.wait()

"""Whether this broker is healthy and ready. Both are checked on the event loop, so any answer means that it runs.

    healthy   the event loop runs and at least one log directory works; if not, a restart may help
    ready     clients can be served: logs recovered, registered, not fenced, up to date with the metadata

A broker that is starting or waiting for its cluster is healthy, but not ready.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from moldau.broker import needs

PROBE_INTERVAL_S = 0.1
BEHIND_MAX_S = 5.0
"""Metadata is always applied a little later than it is known; for longer than this, something is wrong."""


class Broker(
    needs.HasLoop,
    needs.HasMetrics,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasReadLease,
    needs.HasLogs,
    Protocol,
):
    """What health is judged by."""

    @property
    def is_open(self) -> bool:
        """Whether the logs are loaded."""

    @property
    def is_serving(self) -> asyncio.Event: ...

    @property
    def is_closing(self) -> bool: ...


class Health:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._behind_since_s: float | None = None

    async def probe_forever(self) -> None:
        """Measures how late the loop wakes up, and for how long the metadata has been behind."""
        broker, loop = self._broker, self._broker.loop
        while True:
            due_s = loop.time() + PROBE_INTERVAL_S
            await asyncio.sleep(PROBE_INTERVAL_S)
            now_s = loop.time()
            broker.metrics.loop_delay.observe(max(0.0, now_s - due_s))
            if broker.metadata.image.version >= broker.metadata.newest.version:
                self._behind_since_s = None
            elif self._behind_since_s is None:
                self._behind_since_s = now_s

    def why_unhealthy(self) -> list[str]:
        """Empty: it is healthy. On the loop."""
        logs = self._broker.logs
        if len(logs.offline_dirs) == len(logs.directories):
            return ["every log directory is offline"]
        return []

    def why_not_ready(self) -> list[str]:
        """Empty: it is ready. On the loop."""
        broker, metadata = self._broker, self._broker.metadata
        reasons = self.why_unhealthy()
        if broker.is_closing:
            reasons.append("the broker is stopping")
        if not broker.is_open:
            reasons.append("the logs are not loaded yet")
        if broker.local.config.is_clustered:
            me = metadata.image.brokers.get(broker.local.node_id)
            if broker.local.broker_epoch < 0 or me is None:
                reasons.append("the broker is not registered with the controller yet")
            elif me.fenced:
                reasons.append("the controller has fenced this broker")
            if broker.is_serving.is_set() and broker.lease.may_be_expired():
                reasons.append("the controller does not answer")
        if not reasons and not broker.is_serving.is_set():
            reasons.append("the broker does not serve clients yet")
        if self._behind_since_s is not None and broker.loop.time() - self._behind_since_s > BEHIND_MAX_S:
            reasons.append(f"metadata version {metadata.image.version} is applied, {metadata.newest.version} is known")
        return reasons

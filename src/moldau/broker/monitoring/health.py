"""Is this broker healthy, and is it ready? Asked on the loop: an answer alone says that the loop turns.

    healthy   the loop turns and there is a disk to write to: if not, a restart may help
    ready     clients can be served: logs recovered, registered, not fenced, up to date with the metadata

A broker that starts, or waits for its cluster, is healthy and not ready.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

PROBE_INTERVAL_S = 0.1
BEHIND_MAX_S = 5.0
"""Metadata is always applied a little later than it is known; for longer than this, something is wrong."""


class Health:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._behind_since_s: float | None = None

    async def probe_forever(self) -> None:
        """Measures how late the loop wakes up, and for how long the metadata has been behind."""
        loop, node = self._node.loop, self._node
        while True:
            due_s = loop.time() + PROBE_INTERVAL_S
            await asyncio.sleep(PROBE_INTERVAL_S)
            now_s = loop.time()
            node.metrics.loop_delay.observe(max(0.0, now_s - due_s))
            if node.image.version >= node.newest_image.version:
                self._behind_since_s = None
            elif self._behind_since_s is None:
                self._behind_since_s = now_s

    def why_unhealthy(self) -> list[str]:
        """Empty: it is healthy. On the loop."""
        logs = self._node.logs
        if len(logs.offline_dirs) == len(logs.directories):
            return ["every log directory is offline"]
        return []

    def why_not_ready(self) -> list[str]:
        """Empty: it is ready. On the loop."""
        node = self._node
        reasons = self.why_unhealthy()
        if node.is_closing:
            reasons.append("the broker is stopping")
        if not node.is_open:
            reasons.append("the logs are not loaded yet")
        if node.config.is_clustered:
            me = node.image.brokers.get(node.node_id)
            if node.broker_epoch < 0 or me is None:
                reasons.append("the broker is not registered with the controller yet")
            elif me.fenced:
                reasons.append("the controller has fenced this broker")
            if node.is_serving.is_set() and node.lease.may_be_expired():
                reasons.append("the controller does not answer")
        if not reasons and not node.is_serving.is_set():
            reasons.append("the broker does not serve clients yet")
        if self._behind_since_s is not None and node.loop.time() - self._behind_since_s > BEHIND_MAX_S:
            reasons.append(f"metadata version {node.image.version} is in force, {node.newest_image.version} is known")
        return reasons

"""Is this broker well, and is it ready? Asked on the loop, so that an answer alone says something.

    well    the loop turns and there is a disk to write to: if not, a restart may help
    ready   clients find all of it: logs recovered, registered, unfenced, up to date with the metadata

A broker that starts, or waits for its cluster, is well and not ready.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

PROBE_INTERVAL_S = 0.1
BEHIND_MAX_S = 5.0
"""Metadata that is being applied for longer means trouble; until then it is the usual course of things."""


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

    def why_unwell(self) -> list[str]:
        """Empty: it is well. On the loop."""
        logs = self._node.logs
        if len(logs.offline_dirs) == len(logs.directories):
            return ["every log directory is offline"]
        return []

    def why_not_ready(self) -> list[str]:
        """Empty: it is ready. On the loop."""
        node = self._node
        reasons = self.why_unwell()
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
            if node.vigil is not None and node.is_serving.is_set() and node.vigil.is_in_doubt():
                reasons.append("the controller does not answer")
        if not reasons and not node.is_serving.is_set():
            reasons.append("the broker does not serve clients yet")
        if self._behind_since_s is not None and node.loop.time() - self._behind_since_s > BEHIND_MAX_S:
            reasons.append(f"metadata version {node.image.version} is in force, {node.newest_image.version} is known")
        return reasons

"""Requests that only the controller can answer, sent on to it as they came: clients need not know who that is."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from moldau.broker.cluster.peers import FORWARDING
from moldau.broker.network.client_connection import Buffers
from moldau.errors import KafkaError

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.broker.node import BrokerNode

PATIENCE_S = 10.0
"""An election takes less, mostly; then the client is told that this is not the controller, and tries again."""
RETRY_S = 0.05

_PREFIX = struct.Struct(">ii")


async def forward(node: BrokerNode, context: RequestContext, body: bytes) -> Buffers | None:
    """The controller's answer; None when this broker has to answer itself, as controller or in default of one."""
    deadline = node.loop.time() + PATIENCE_S
    while node.loop.time() < deadline:
        leadership = node.controller.leadership
        if node.controller.is_active:
            return None
        if leadership is not None and leadership.node_id != node.node_id:
            peer = node.peers.at((leadership.host, leadership.port), FORWARDING)
            try:
                frame = await peer.ask_raw(context.key, context.version, [body])
            except KafkaError:
                pass  # it just died, perhaps
            else:
                return [_PREFIX.pack(len(frame), context.correlation_id), frame[4:]]
        await asyncio.sleep(RETRY_S)
    return None

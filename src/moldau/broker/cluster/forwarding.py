"""Requests that only the controller can answer, sent on to it as they came: clients need not know who that is."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from moldau.broker.cluster.peers import FORWARDING
from moldau.broker.network.client_connection import Buffers
from moldau.errors import KafkaError
from moldau.wire.apis import ApiKey

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.broker.node import BrokerNode

FORWARDED = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UNREGISTER_BROKER,
    }
)
PATIENCE_S = 10.0
"""An election takes less, mostly; then the client is told that this is not the controller, and tries again."""
RETRY_S = 0.05

_PREFIX = struct.Struct(">ii")


def is_from_broker(client_id: str | None) -> bool:
    """What a broker sent on is not sent on again, or two could play ball with it."""
    return client_id is not None and client_id.startswith("broker-")


def should_forward(node: BrokerNode, context: RequestContext) -> bool:
    return context.key in FORWARDED and not node.controller.is_active and not is_from_broker(context.client_id)


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

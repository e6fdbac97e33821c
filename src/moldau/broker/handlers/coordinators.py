"""FindCoordinator (key 10): who keeps a group's offsets, a transaction, or a share group's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator import Coordinator
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.dispatch import RequestContext
    from moldau.broker.node import BrokerNode

_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_MANY_SINCE = 4


async def handle_find_coordinator(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    key_type = getattr(request, "key_type", _GROUP)
    if context.version < _MANY_SINCE:
        found = await _find(node, context, key_type, request.key)
        return schema.FindCoordinatorResponse(throttle_time=ms(0), **found)
    return schema.FindCoordinatorResponse(
        throttle_time=ms(0),
        coordinators=tuple(
            [
                schema.Coordinator(key=key, **await _find(node, context, key_type, key))
                for key in request.coordinator_keys
            ]
        ),
    )


async def _find(node: BrokerNode, context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    try:
        coordinator = _coordinator(node, key_type)
        await coordinator.ready()
        coordinator.partition_for(key)
    except KafkaError as failure:
        return {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error(failure.code),
            "error_message": failure.message,
        }
    host, port = node.advertised[context.connection.listener]
    return {
        "node_id": node.node_id,
        "host": host,
        "port": port,
        "error_code": error(ErrorCode.NONE),
        "error_message": None,
    }


def _coordinator(node: BrokerNode, key_type: int) -> Coordinator[Any]:
    if key_type == _GROUP:
        return node.groups
    if key_type == _TRANSACTION:
        return node.transactions
    if key_type == _SHARE:
        return node.share_state
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")

"""FindCoordinator (key 10): who keeps a group's offsets. Nobody yet, and a client that asks is told so.

It is served because librdkafka takes its presence for the sign of a broker that understands lz4: without it, what
a program asks to be compressed is sent as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.errors import ErrorCode
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.dispatch import RequestContext
    from moldau.broker.node import BrokerNode

_WHY = "this broker has no group or transaction coordinator; readers assign() their partitions"
_MANY_SINCE = 4


def handle_find_coordinator(node: BrokerNode, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    nobody: dict[str, Any] = {
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": error(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        "error_message": _WHY,
    }
    if context.version < _MANY_SINCE:
        return schema.FindCoordinatorResponse(throttle_time=ms(0), **nobody)
    return schema.FindCoordinatorResponse(
        throttle_time=ms(0),
        coordinators=tuple(schema.Coordinator(key=key, **nobody) for key in request.coordinator_keys),
    )

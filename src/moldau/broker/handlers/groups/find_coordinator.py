"""FindCoordinator (key 10): the broker that coordinates a group, a transactional id or a share partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.coordination.coordinator_shell import CoordinatorShell
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasTurns,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasGroups,
    needs.HasTransactions,
    needs.HasShareState,
    Protocol,
):
    """What these handlers use."""


_GROUP = 0
_TRANSACTION = 1
_SHARE = 2
_MANY_KEYS_VERSION_MIN = 4


async def handle_find_coordinator(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    key_type = getattr(request, "key_type", _GROUP)
    if context.version < _MANY_KEYS_VERSION_MIN:
        found = await _find(broker, context, key_type, request.key)
        return schema.FindCoordinatorResponse(throttle_time=ms(0), **found)
    found_all = [
        schema.Coordinator(key=key, **await _find(broker, context, key_type, key))
        async for key in broker.turns.each(request.coordinator_keys)
    ]
    return schema.FindCoordinatorResponse(throttle_time=ms(0), coordinators=tuple(found_all))


async def _find(broker: Broker, context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    try:
        coordinator = _coordinator(broker, key_type)
        await coordinator.ready()
        broker_id = coordinator.leader_for(key)
        host, port = _endpoint(broker, context.connection.listener, broker_id)
    except KafkaError as failure:
        return {
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": error(failure.code),
            "error_message": failure.message,
        }
    return {
        "node_id": broker_id,
        "host": host,
        "port": port,
        "error_code": error(ErrorCode.NONE),
        "error_message": None,
    }


def _endpoint(broker: Broker, listener: str, broker_id: int) -> tuple[str, int]:
    if broker_id == broker.local.node_id:
        return broker.local.advertised[listener]
    for other, host, port, _ in broker.metadata.endpoints(listener):
        if other == broker_id:
            return host, port
    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {broker_id} has no listener {listener}")


def _coordinator(broker: Broker, key_type: int) -> CoordinatorShell[Any]:
    if key_type == _GROUP:
        return broker.groups
    if key_type == _TRANSACTION:
        return broker.transactions
    if key_type == _SHARE:
        return broker.share_state
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}")

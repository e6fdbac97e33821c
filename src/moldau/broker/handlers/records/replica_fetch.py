"""Fetch (key 1) of a follower; `follower_sessions` has its session."""

from __future__ import annotations

from typing import Protocol

from moldau.broker import needs
from moldau.broker.network.client_connection import Answer
from moldau.broker.network.request import RequestContext
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.fetch import FetchRequest, encode_fetch_response


class Broker(needs.HasTurns, needs.HasFollowerSessions, Protocol):
    """What these handlers use."""


_BROKER_EPOCH_VERSION_MIN = 15
"""The first version in which a follower sends the epoch of its broker."""


def handle_replica_fetch(broker: Broker, context: RequestContext, request: FetchRequest) -> Answer:
    try:
        if context.version < _BROKER_EPOCH_VERSION_MIN:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "a follower needs version 15 of Fetch or a later one")
        return broker.turns.run(broker.follower_sessions.fetch(context, request))
    except KafkaError as error:
        return encode_fetch_response(context.version, context.correlation_id, [], error_code=int(error.code))

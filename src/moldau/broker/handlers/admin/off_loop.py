"""Responses that take long to build are built in a thread. Work that needs the event loop takes turns (`turns`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.wire.messages import encode_response

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasThreads, Protocol):
    """What these handlers use."""


async def answer_in_thread(broker: Broker, context: RequestContext, build: Callable[[], Any]) -> bytes:
    """The whole frame of the answer that `build` gives; `build` may read only what never changes (images, configs)."""
    return await broker.threads.compute(lambda: encode_response(context.correlation_id, build()))

"""Answers that take long to build and encode are made in a thread, so that the loop's other clients do not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.wire.messages import encode_response

if TYPE_CHECKING:
    from moldau.broker.dispatch import RequestContext
    from moldau.broker.node import BrokerNode


async def answer_in_thread(node: BrokerNode, context: RequestContext, build: Callable[[], Any]) -> bytes:
    """The whole frame of the answer that `build` gives; `build` may read only what never changes (images, configs)."""
    return await node.in_thread(lambda: encode_response(context.correlation_id, build()))

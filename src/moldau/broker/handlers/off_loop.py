"""Answers that take long: built in a thread, or in turns, so that the loop's other clients do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.wire.messages import encode_response

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode
    from moldau.broker.request import RequestContext


T = TypeVar("T")


async def in_turns(items: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """The items, for work that has to be done on the loop: after each `at_once` of them others get their turn."""
    for number, item in enumerate(items, 1):
        yield item
        if number % at_once == 0:
            await asyncio.sleep(0)


async def answer_in_thread(node: BrokerNode, context: RequestContext, build: Callable[[], Any]) -> bytes:
    """The whole frame of the answer that `build` gives; `build` may read only what never changes (images, configs)."""
    return await node.threads.compute(lambda: encode_response(context.correlation_id, build()))

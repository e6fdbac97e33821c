"""Batches of messages from one broker to another: one request at a time, with everything that was added meanwhile.

Fast responses make small requests, slow ones large requests. The items for one broker stay in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from moldau.broker.background import Spawn
from moldau.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

ITEMS_MAX = 200
"""In one request: some milliseconds of the other broker's loop."""

T = TypeVar("T")
R = TypeVar("R")


class Outbox(Generic[T, R]):
    def __init__(self, spawn: Spawn, send: Callable[[int, Sequence[T]], Awaitable[Sequence[R | KafkaError]]]) -> None:
        """`send` asks a broker about items, and returns what it says to each, in their order."""
        self._spawn = spawn
        self._send = send
        self._queues: dict[int, deque[tuple[T, asyncio.Future[R]]]] = {}

    def put(self, broker_id: int, item: T) -> asyncio.Future[R]:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = deque()
            self._spawn(self._drain(broker_id, queue))
        queue.append((item, future))
        return future

    async def _drain(self, broker_id: int, queue: deque[tuple[T, asyncio.Future[R]]]) -> None:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(len(queue), ITEMS_MAX))]
                answers = await self._try_send(broker_id, [item for item, _ in batch])
                for (_, future), answer in zip(batch, answers, strict=True):
                    _resolve(future, answer)
        finally:
            del self._queues[broker_id]
            for _, future in (*batch, *queue):  # the broker stops
                future.cancel()

    async def _try_send(self, broker_id: int, items: Sequence[T]) -> Sequence[R | KafkaError]:
        try:
            answers = await self._send(broker_id, items)
            if len(answers) == len(items):
                return answers
            refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {broker_id} answered to something else")
        except KafkaError as error:
            refusal = error
        except Exception as error:
            logger.exception(
                "internal error in a request to another broker (please report it)", extra={"broker": broker_id}
            )
            refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
        return [refusal] * len(items)


def _resolve(future: asyncio.Future[R], answer: R | KafkaError) -> None:
    if future.done():
        return
    if isinstance(answer, KafkaError):
        future.set_exception(answer)
    else:
        future.set_result(answer)

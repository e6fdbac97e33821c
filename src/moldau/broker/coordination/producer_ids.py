"""Producer ids: allocated by the controller in blocks. No id is used twice, not even after a restart."""

from __future__ import annotations

import asyncio

from moldau.broker.background import Spawn
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.coordination.context import AskController, ChangeMetadata
from moldau.cluster.controller import PRODUCER_ID_BLOCK
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ProducerIdsRecord, Record
from moldau.wire.apis import ApiKey

REFILL_AT = 100
"""Ids left when the next block is requested: that takes a round trip and a durable write."""


class ProducerIds:
    """The current block, and the next one when it is there."""

    def __init__(
        self, local: LocalBroker, spawn: Spawn, ask_controller: AskController, change_metadata: ChangeMetadata
    ) -> None:
        self._local = local
        self._spawn = spawn
        self._ask_controller = ask_controller
        self._change_metadata = change_metadata
        self._block = range(0)
        self._next_block = range(0)
        self._refilling: asyncio.Task[None] | None = None

    async def take(self) -> int:
        while not self._block:
            if self._next_block:
                self._block, self._next_block = self._next_block, range(0)
            else:
                await asyncio.shield(self._refill())
        producer_id, self._block = self._block[0], self._block[1:]
        if len(self._block) < REFILL_AT and not self._next_block:
            self._refill()
        return producer_id

    def _refill(self) -> asyncio.Task[None]:
        """One at a time, for all who wait."""
        if self._refilling is None:
            self._refilling = self._spawn(self._fetch_block())
            self._refilling.add_done_callback(self._refilled)
        return self._refilling

    def _refilled(self, task: asyncio.Task[None]) -> None:
        self._refilling = None
        if not task.cancelled():
            task.exception()  # waiting callers get it; a refill ahead of need is tried again with the next id

    async def _fetch_block(self) -> None:
        if not self._local.config.is_clustered:
            self._next_block = await self._reserve()
            return
        # To a producer it is as if its coordinator were loading, while there are none: it asks again.
        try:
            answer = await self._ask_controller(
                ApiKey.ALLOCATE_PRODUCER_IDS,
                lambda schema: schema.AllocateProducerIdsRequest(
                    broker_id=self._local.node_id, broker_epoch=self._local.broker_epoch
                ),
            )
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"cannot get producer ids from the controller: {error.message}"
            ) from error
        if answer.error_code:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the controller refused to allocate producer ids: {ErrorCode(answer.error_code).name}",
            )
        self._next_block = range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)

    async def _reserve(self) -> range:
        first = -1

        def plan(image: MetadataImage) -> list[Record]:
            nonlocal first
            first = image.next_producer_id
            return [ProducerIdsRecord(next_producer_id=first + PRODUCER_ID_BLOCK)]

        await self._change_metadata(plan)
        return range(first, first + PRODUCER_ID_BLOCK)

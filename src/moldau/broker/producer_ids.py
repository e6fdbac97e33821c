"""Producer ids: taken from the metadata in blocks, never given twice, not even across restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ProducerIdsRecord, Record

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

BLOCK_SIZE = 1000
"""Ids taken from the metadata at once: one durable write per thousand producers; a crash skips the rest of a block."""


class ProducerIds:
    """The current block. The metadata holds where the next one begins."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._next = 0
        self._end = 0

    async def take(self) -> int:
        while self._next == self._end:
            first = -1

            def reserve(image: MetadataImage) -> list[Record]:
                nonlocal first
                first = image.next_producer_id
                return [ProducerIdsRecord(next_producer_id=first + BLOCK_SIZE)]

            await self._node.change_metadata(reserve)
            if self._next == self._end:
                self._next, self._end = first, first + BLOCK_SIZE
        self._next += 1
        return self._next - 1

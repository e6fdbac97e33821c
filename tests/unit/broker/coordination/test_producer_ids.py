"""Producer ids, in blocks."""

from __future__ import annotations

import asyncio

from moldau.broker.coordination.producer_ids import REFILL_AT
from moldau.cluster.controller import PRODUCER_ID_BLOCK
from tests.unit.broker.offline import StartOffline


async def test_ids_are_given_once_however_many_ask_at_a_time(start_offline: StartOffline) -> None:
    ids = start_offline().node.producer_ids
    taken = await asyncio.gather(*(ids.take() for _ in range(2 * PRODUCER_ID_BLOCK + 10)))
    assert sorted(taken) == list(range(2 * PRODUCER_ID_BLOCK + 10))


async def test_the_next_block_is_there_before_it_is_needed(start_offline: StartOffline) -> None:
    node = start_offline().node
    for _ in range(PRODUCER_ID_BLOCK - REFILL_AT):
        await node.producer_ids.take()
    assert node.metadata.image.next_producer_id == PRODUCER_ID_BLOCK
    await node.producer_ids.take()
    async with asyncio.timeout(10):
        await node.metadata.applied(node.metadata.image.version + 1)
    assert node.metadata.image.next_producer_id == 2 * PRODUCER_ID_BLOCK

"""One request at a time to each broker, with all that came meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from moldau.broker.cluster.outbox import ITEMS_MAX, Outbox
from moldau.errors import ErrorCode, KafkaError
from tests.unit.broker.offline import OfflineBroker


class Slow:
    """Answers with what it was asked, when it may; odd numbers are refused."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[int]]] = []
        self.may_answer = asyncio.Event()

    async def send(self, broker_id: int, items: Sequence[int]) -> list[int | KafkaError]:
        self.requests.append((broker_id, list(items)))
        await self.may_answer.wait()
        return [KafkaError(ErrorCode.NOT_COORDINATOR) if item % 2 else item for item in items]


async def test_what_comes_while_a_request_is_under_way_shares_the_next_one_in_order(
    offline_broker: OfflineBroker,
) -> None:
    slow = Slow()
    outbox: Outbox[int, int] = Outbox(offline_broker.node.spawn, slow.send)
    first = outbox.put(1, 0)
    await asyncio.sleep(0)
    others = [outbox.put(1, number) for number in (2, 4, 6)]
    elsewhere = outbox.put(2, 8)
    await asyncio.sleep(0)
    assert slow.requests == [(1, [0]), (2, [8])]
    slow.may_answer.set()
    assert await asyncio.gather(first, *others, elsewhere) == [0, 2, 4, 6, 8]
    assert slow.requests[2:] == [(1, [2, 4, 6])]


async def test_each_item_has_its_own_answer_and_a_request_has_an_end(offline_broker: OfflineBroker) -> None:
    slow = Slow()
    slow.may_answer.set()
    outbox: Outbox[int, int] = Outbox(offline_broker.node.spawn, slow.send)
    answers = await asyncio.gather(*(outbox.put(1, n) for n in range(ITEMS_MAX + 1)), return_exceptions=True)
    assert [isinstance(answer, KafkaError) for answer in answers] == [bool(n % 2) for n in range(ITEMS_MAX + 1)]
    assert [len(items) for _, items in slow.requests] == [ITEMS_MAX, 1]


async def test_a_request_that_fails_or_is_answered_wrongly_fails_for_all_its_items(
    offline_broker: OfflineBroker,
) -> None:
    async def lost(_: int, __: Sequence[int]) -> list[int | KafkaError]:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection is lost")

    async def short(_: int, __: Sequence[int]) -> list[int | KafkaError]:
        return []

    for send, code in ((lost, ErrorCode.NETWORK_EXCEPTION), (short, ErrorCode.UNKNOWN_SERVER_ERROR)):
        outbox: Outbox[int, int] = Outbox(offline_broker.node.spawn, send)
        for future in (outbox.put(1, 0), outbox.put(1, 2)):
            with pytest.raises(KafkaError) as error:
                await future
            assert error.value.code is code

"""How to test a service that uses Kafka against what rarely happens: run it with `pytest examples`.

`bill_orders` is the service: it reads orders and writes an invoice for each, exactly once, in transactions. It knows
nothing of the tests. The tests run it in a simulated cluster, in virtual time (docs/simulation.md).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from moldau.testing.simulation import SimulatedKafka

# -- the service


async def bill_orders(servers: str) -> None:
    while True:
        try:
            await _bill_until_something_breaks(servers)
        except KafkaError:
            await asyncio.sleep(0.5)


async def _bill_until_something_breaks(servers: str) -> None:
    reading = {"group_id": "billing", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with (
        AIOKafkaConsumer("orders", bootstrap_servers=servers, isolation_level="read_committed", **reading) as orders,
        AIOKafkaProducer(bootstrap_servers=servers, transactional_id="billing") as invoices,
    ):
        while True:
            batches = await orders.getmany(timeout_ms=500)
            if not batches:
                continue
            async with invoices.transaction():
                for order in (order for batch in batches.values() for order in batch):
                    await invoices.send("invoices", b"invoice for " + order.value)
                ends = {partition: batch[-1].offset + 1 for partition, batch in batches.items()}
                await invoices.send_offsets_to_transaction(ends, "billing")


# -- its tests

ORDERS = [f"order {number}" for number in range(10)]
INVOICES = [f"invoice for {order}" for order in ORDERS]


async def place(cluster: SimulatedKafka, orders: list[str]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True) as producer:
        for order in orders:
            await producer.send_and_wait("orders", order.encode())
            await asyncio.sleep(0.3)


async def written_invoices(cluster: SimulatedKafka) -> list[str]:
    """All of them: it reads until no more come."""
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer("invoices", bootstrap_servers=cluster.bootstrap_servers, **settings) as consumer:
        invoices: list[str] = []
        batches: dict[TopicPartition, list[Any]] = {}
        while batches or len(invoices) < len(ORDERS):
            batches = await consumer.getmany(timeout_ms=5000)
            invoices += [record.value.decode() for batch in batches.values() for record in batch]
        return invoices


async def start(cluster: SimulatedKafka) -> None:
    await cluster.create_topic("orders")
    await cluster.create_topic("invoices")
    cluster.process("billing", partial(bill_orders, cluster.bootstrap_servers))


async def test_an_order_is_billed_once_when_leaders_die(simulated_kafka: SimulatedKafka) -> None:
    await start(simulated_kafka)
    await place(simulated_kafka, ORDERS[:5])
    simulated_kafka.leader_of("invoices").kill()
    await place(simulated_kafka, ORDERS[5:])
    assert await written_invoices(simulated_kafka) == INVOICES


async def test_an_order_is_billed_once_when_the_service_is_killed(simulated_kafka: SimulatedKafka) -> None:
    await start(simulated_kafka)
    await place(simulated_kafka, ORDERS[:5])
    service = simulated_kafka.processes["billing"]
    service.kill()
    service.start()
    await place(simulated_kafka, ORDERS[5:])
    assert await written_invoices(simulated_kafka) == INVOICES


async def test_an_order_is_billed_once_when_the_service_hears_no_answer_to_its_commit(
    simulated_kafka: SimulatedKafka,
) -> None:
    await start(simulated_kafka)
    lost = simulated_kafka.lose_response("EndTxn")
    await place(simulated_kafka, ORDERS)
    assert lost.happened
    assert await written_invoices(simulated_kafka) == INVOICES


@pytest.mark.simulated_kafka(seeds=range(5))
async def test_an_order_is_billed_once_whatever_breaks(simulated_kafka: SimulatedKafka) -> None:
    await start(simulated_kafka)
    async with simulated_kafka.random_faults():
        await place(simulated_kafka, ORDERS)
    assert await written_invoices(simulated_kafka) == INVOICES

"""Applications written with aiokafka, in a simulated cluster: what they rely on holds, and their own bugs show."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from moldau.testing.simulation import SimulatedKafka, simulate

GROUP = "billing"


def producer_for(cluster: SimulatedKafka, **options: object) -> AIOKafkaProducer:
    safe = {"acks": "all", "enable_idempotence": True}
    return AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **{**safe, **options})


def consumer_for(cluster: SimulatedKafka, *topics: str, **options: object) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    )


async def read_all(cluster: SimulatedKafka, topic: str, **options: object) -> list[str]:
    """The values of its one partition."""
    part = TopicPartition(topic, 0)
    async with consumer_for(cluster, **options) as consumer:
        consumer.assign([part])
        end = (await consumer.end_offsets([part]))[part]
        values: list[str] = []
        while await consumer.position(part) < end:
            batch = await consumer.getmany(part, timeout_ms=100)
            values += [record.value.decode() for records in batch.values() for record in records]
        return values


async def failover(cluster: SimulatedKafka) -> tuple[list[str], int]:
    await cluster.create_topic("orders")
    async with producer_for(cluster) as producer:
        for number in range(20):
            if number == 10:
                cluster.leader_of("orders").kill()
            await producer.send_and_wait("orders", b"%d" % number)
    return await read_all(cluster, "orders"), cluster.fingerprint


def test_no_order_is_lost_when_the_leader_dies() -> None:
    for values, _ in simulate(failover, seeds=range(3)):
        assert values == [str(number) for number in range(20)]


def test_a_seed_is_a_run() -> None:
    first, again, other = simulate(failover, seeds=(5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize("fault", ["fill_disk", "fail_disk"])
def test_a_leader_whose_disk_breaks_is_replaced(fault: str) -> None:
    async def story(cluster: SimulatedKafka) -> list[str]:
        await cluster.create_topic("orders")
        async with producer_for(cluster) as producer:
            await producer.send_and_wait("orders", b"one")
            leader = cluster.leader_of("orders")
            getattr(leader, fault)()
            await producer.send_and_wait("orders", b"two")
            assert cluster.leader_of("orders") is not leader
            leader.heal_disk()
            leader.kill()
            leader.start()
            await cluster.until_ready()
        return await read_all(cluster, "orders")

    assert simulate(story) == ["one", "two"]


def test_a_lost_acknowledgement_duplicates_a_record_only_without_idempotence() -> None:
    async def story(cluster: SimulatedKafka, idempotent: bool) -> list[str]:
        await cluster.create_topic("orders")
        async with producer_for(cluster, enable_idempotence=idempotent) as producer:
            await producer.send_and_wait("orders", b"one")
            lost = cluster.lose_response("Produce")
            await producer.send_and_wait("orders", b"two")
            assert lost.happened
        return await read_all(cluster, "orders")

    assert simulate(lambda cluster: story(cluster, True)) == ["one", "two"]
    assert simulate(lambda cluster: story(cluster, False)) == ["one", "two", "two"]


def test_a_lost_acknowledgement_of_a_commit_is_repeated() -> None:
    async def story(cluster: SimulatedKafka) -> int | None:
        await cluster.create_topic("orders")
        async with producer_for(cluster) as producer:
            await producer.send_and_wait("orders", b"one")
        async with consumer_for(cluster, "orders", group_id=GROUP) as consumer:
            await consumer.getone()
            lost = cluster.lose_response("OffsetCommit", broker=cluster.coordinator_of(GROUP))
            await consumer.commit()
            assert lost.happened
            committed: int | None = await consumer.committed(TopicPartition("orders", 0))
            return committed

    assert simulate(story) == 1


def test_a_rebalance_storm_loses_no_record_and_no_commit() -> None:
    count, partitions = 30, 3

    async def story(cluster: SimulatedKafka) -> None:
        await cluster.create_topic("orders", partitions)
        processed: Counter[str] = Counter()

        async def consume() -> None:
            options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 500, "group_id": GROUP}
            async with consumer_for(cluster, "orders", **options) as consumer:
                async for record in consumer:
                    processed[record.value.decode()] += 1
                    try:
                        await consumer.commit({TopicPartition("orders", record.partition): record.offset + 1})
                    except (CommitFailedError, IllegalStateError):
                        cluster.note(f"loses {record.partition}@{record.offset} to another consumer")

        async def watch() -> None:
            """Committed offsets never go back."""
            highest = dict.fromkeys(range(partitions), 0)
            async with consumer_for(cluster, group_id=GROUP) as consumer:
                while True:
                    for number in highest:
                        offset = await consumer.committed(TopicPartition("orders", number)) or 0
                        assert offset >= highest[number], f"orders-{number}: {offset} after {highest[number]}"
                        highest[number] = offset
                    await asyncio.sleep(0.5)

        consumers = [cluster.process(f"consumer-{number}", consume) for number in range(3)]
        cluster.process("watcher", watch)
        async with producer_for(cluster) as producer:
            for number in range(count):
                await producer.send_and_wait("orders", str(number).encode(), partition=number % partitions)
                if number % 10 == 5:
                    victim = cluster.random.choice(consumers)
                    fault = cluster.random.choice(("kill", "pause"))
                    getattr(victim, fault)()
                    await asyncio.sleep(cluster.random.uniform(0, 12))
                    victim.start() if fault == "kill" else victim.resume()
        await cluster.until(lambda: len(processed) == count)

    simulate(story, seeds=range(2))


async def copy(cluster: SimulatedKafka) -> None:
    """From one topic to the other, for ever; as a supervisor would, it begins again after an error."""
    while True:
        try:
            async with (
                consumer_for(cluster, "in", group_id=GROUP) as consumer,
                producer_for(cluster, transactional_id="copy") as producer,
            ):
                while True:
                    batch = await consumer.getmany(timeout_ms=500, max_records=4)
                    if not batch:
                        continue
                    async with producer.transaction():
                        for record in (record for records in batch.values() for record in records):
                            await producer.send("out", record.value)
                        ends = {part: records[-1].offset + 1 for part, records in batch.items()}
                        await producer.send_offsets_to_transaction(ends, GROUP)
        except KafkaError as error:
            cluster.note(f"begins again after {error!r}")
            await asyncio.sleep(0.5)


def test_a_copy_with_transactions_is_exactly_once_whatever_breaks() -> None:
    numbers = [str(number) for number in range(16)]

    async def story(cluster: SimulatedKafka) -> list[str]:
        await cluster.create_topic("in")
        await cluster.create_topic("out")
        copier = cluster.process("copier", lambda: copy(cluster))
        async with cluster.random_faults("kill", length_s=(0.1, 1.5)), producer_for(cluster) as producer:
            for number in numbers:
                await producer.send_and_wait("in", number.encode())
                await asyncio.sleep(0.2)
            copier.kill()
            copier.start()
        while len(values := await read_all(cluster, "out", isolation_level="read_committed")) < len(numbers):
            await asyncio.sleep(0.5)
        return values

    assert simulate(story, seeds=range(3)) == [numbers] * 3


def test_the_admin_client_works() -> None:
    async def story(cluster: SimulatedKafka) -> list[str]:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic("orders", 3, 3)])
        topics: list[str] = await admin.list_topics()
        await admin.close()
        return topics

    assert simulate(story) == ["orders"]


def test_records_have_virtual_timestamps() -> None:
    async def story(cluster: SimulatedKafka) -> float:
        async with producer_for(cluster) as producer:
            first = await producer.send_and_wait("orders", b"one")
            await asyncio.sleep(60)
            second = await producer.send_and_wait("orders", b"two")
        return float(second.timestamp - first.timestamp)

    assert simulate(story, brokers=1) == pytest.approx(60_000, abs=100)

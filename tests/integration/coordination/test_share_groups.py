"""Queues on topics, with librdkafka's share consumer: each record to one member, acknowledged by itself."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer

from moldau import Broker
from moldau.client.admin import Resource, alter_configs
from moldau.wire.apis import ApiKey
from moldau.wire.constants import ResourceType
from moldau.wire.messages import ms, request_schema
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS, Message, present
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient
from tests.integration.waiting import eventually

DEADLINE_S = 30.0
SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": 1_000, "group.share.record.lock.duration.ms": 1_000}

OpenConsumer = Callable[..., ShareConsumer]
Delivered = tuple[int, bytes, int]
"""Offset, value and delivery count."""


def delivered(message: confluent_kafka.Message) -> Delivered:
    return present(message.offset()), present(message.value()), present(message.delivery_count())


"""Offset, value and delivery count."""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(SHORT_LOCKS) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def share(bootstrap: str) -> Iterator[OpenConsumer]:
    """`share(group, topic)` opens a share consumer, closed at the end of the test."""
    with ExitStack() as opened:

        def open_one(group: str, topic: str, where: str = bootstrap, **config: Any) -> ShareConsumer:
            consumer = ShareConsumer(
                {
                    "bootstrap.servers": where,
                    "group.id": group,
                    "share.acknowledgement.mode": "explicit",
                    "log_level": 0,
                    **config,
                }
            )
            opened.callback(consumer.close)
            consumer.subscribe([topic])
            return consumer

        yield open_one


def new_group(bootstrap: str, **configs: str) -> str:
    """A group that begins with the oldest record."""
    name = f"group-{uuid.uuid4().hex[:12]}"
    with cluster_at(bootstrap) as cluster:
        values = {"share.auto.offset.reset": "earliest", **configs}
        alter_configs(cluster, Resource(ResourceType.GROUP, name), set_values=values)
    return name


def write(bootstrap: str, topic: str, *values: str) -> None:
    CLIENTS[0].produce(bootstrap, topic, [Message(value.encode(), partition=0) for value in values])


def take(
    consumer: ShareConsumer,
    count: int,
    ack: AcknowledgeType | None = AcknowledgeType.ACCEPT,
    *,
    within_s: float = DEADLINE_S,
) -> list[Delivered]:
    """At least `count` records, each acknowledged unless `ack` is None."""
    taken: list[Delivered] = []
    deadline = time.monotonic() + within_s
    while len(taken) < count and time.monotonic() < deadline:
        for message in consumer.poll(0.2):
            assert message.error() is None
            taken.append(delivered(message))
            if ack is not None:
                consumer.acknowledge(message, ack)
        if ack is not None and taken:
            consumer.commit_sync()
    return taken


def values_of(delivered: list[Delivered]) -> list[bytes]:
    return [value for _, value, _ in delivered]


def queue_left(bootstrap: str, group: str, topic: str) -> tuple[int, int]:
    """The share partition's start offset and its lag."""
    with RawClient(bootstrap) as client:
        schema = request_schema(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1)
        response = client.ask(
            schema.DescribeShareGroupOffsetsRequest(
                groups=(
                    schema.DescribeShareGroupOffsetsRequestGroup(
                        group_id=group,
                        topics=(schema.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=(0,)),),
                    ),
                )
            )
        )
    partition = response.groups[0].topics[0].partitions[0]
    return partition.start_offset, partition.lag


def test_two_consumers_share_the_records_of_one_partition(bootstrap: str, share: OpenConsumer) -> None:
    topic, group = make_topic(bootstrap), new_group(bootstrap)
    one, two = share(group, topic), share(group, topic)
    delivered: dict[ShareConsumer, list[bytes]] = {one: [], two: []}

    def both_have_some() -> bool:
        write(bootstrap, topic, *(str(uuid.uuid4()) for _ in range(10)))
        for consumer in delivered:
            delivered[consumer] += values_of(take(consumer, 1, within_s=0.2))
        return all(delivered.values())

    eventually(both_have_some, "both consumers got records")
    everything = delivered[one] + delivered[two]
    assert len(everything) == len(set(everything)), "a record went to both"


def test_released_records_come_again_and_rejected_ones_do_not(bootstrap: str, share: OpenConsumer) -> None:
    topic, group = make_topic(bootstrap), new_group(bootstrap)
    write(bootstrap, topic, "a", "b", "c")
    consumer = share(group, topic)
    kinds = {0: AcknowledgeType.RELEASE, 1: AcknowledgeType.REJECT, 2: AcknowledgeType.ACCEPT}
    seen: list[Delivered] = []
    while len(seen) < 3:
        for message in consumer.poll(5):
            seen.append(delivered(message))
            consumer.acknowledge(message, kinds[seen[-1][0]])
    consumer.commit_sync()
    assert take(consumer, 1) == [(0, b"a", 2)]
    eventually(lambda: queue_left(bootstrap, group, topic) == (3, 0), "everything is done")


def test_a_record_that_is_released_too_often_is_given_up(bootstrap: str, share: OpenConsumer) -> None:
    topic, group = make_topic(bootstrap), new_group(bootstrap, **{"share.delivery.count.limit": "3"})
    write(bootstrap, topic, "poison")
    consumer = share(group, topic)
    counts = [take(consumer, 1, AcknowledgeType.RELEASE)[0][2] for _ in range(3)]
    assert counts == [1, 2, 3]
    write(bootstrap, topic, "good")
    assert take(consumer, 1) == [(1, b"good", 1)]


def test_a_consumer_that_hangs_loses_its_records_to_others(bootstrap: str, share: OpenConsumer) -> None:
    topic, group = make_topic(bootstrap), new_group(bootstrap)
    write(bootstrap, topic, "a")
    hung = share(group, topic)
    assert take(hung, 1, None) == [(0, b"a", 1)]
    assert take(share(group, topic), 1) == [(0, b"a", 2)]


def test_records_of_a_consumer_that_leaves_are_available_at_once(bootstrap: str, share: OpenConsumer) -> None:
    topic = make_topic(bootstrap)
    group = new_group(bootstrap, **{"share.record.lock.duration.ms": "60000"})
    write(bootstrap, topic, "a", "b")
    with RawClient(bootstrap) as dying:
        acquired = raw_fetch(dying, group, topic)
        assert [(one.first_offset, one.last_offset, one.delivery_count) for one in acquired] == [(0, 1, 1)]
    # Its connection is gone, and nothing of what it had fetched was ever used.
    assert take(share(group, topic), 2) == [(0, b"a", 1), (1, b"b", 1)]


def raw_fetch(client: RawClient, group: str, topic: str) -> Any:
    """What a member that joins by hand acquires with its first fetch."""
    find = request_schema(ApiKey.FIND_COORDINATOR, 3).FindCoordinatorRequest(key=group, key_type=0)
    assert client.ask(find).error_code == 0
    member = str(uuid.uuid4())
    join = request_schema(ApiKey.SHARE_GROUP_HEARTBEAT, 1).ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=0, rack_id=None, subscribed_topic_names=(topic,)
    )
    assert client.ask(join).error_code == 0
    schema = request_schema(ApiKey.SHARE_FETCH, 1)
    partition = schema.FetchPartition(partition_index=0, acknowledgement_batches=())
    fetch = schema.ShareFetchRequest(
        group_id=group,
        member_id=member,
        share_session_epoch=0,
        max_wait=ms(5_000),
        min_bytes=1,
        max_bytes=1_000_000,
        max_records=100,
        batch_size=100,
        topics=(schema.FetchTopic(topic_id=client.topic_id(topic), partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    return client.ask(fetch).responses[0].partitions[0].acquired_records


def test_a_group_begins_at_the_end_unless_told_otherwise(bootstrap: str, share: OpenConsumer) -> None:
    topic, group = make_topic(bootstrap), f"group-{uuid.uuid4().hex[:12]}"
    write(bootstrap, topic, "old")
    consumer = share(group, topic)

    def has_begun() -> bool:
        take(consumer, 1, within_s=0.1)
        return queue_left(bootstrap, group, topic)[0] >= 0

    eventually(has_begun, "the queue has a beginning")
    write(bootstrap, topic, "new")
    assert take(consumer, 1) == [(1, b"new", 1)]


def test_a_queue_and_a_stream_read_the_same_topic(bootstrap: str, share: OpenConsumer) -> None:
    topic, group = make_topic(bootstrap), new_group(bootstrap)
    write(bootstrap, topic, *"abcdef")
    assert values_of(take(share(group, topic), 6)) == [value.encode() for value in "abcdef"]
    assert values_of(take(share(new_group(bootstrap), topic), 6)) == [value.encode() for value in "abcdef"]
    assert [record.value for record in CLIENTS[0].read(bootstrap, topic, count=6)] == [b.encode() for b in "abcdef"]


def test_records_of_an_aborted_transaction_are_never_delivered(bootstrap: str, share: OpenConsumer) -> None:
    topic = make_topic(bootstrap)
    group = new_group(bootstrap, **{"share.isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": str(uuid.uuid4())})
    producer.init_transactions()
    for value, end in (("no", producer.abort_transaction), ("yes", producer.commit_transaction)):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{value}{number}", partition=0)
        producer.flush()
        end()
    consumer = share(group, topic)
    assert values_of(take(consumer, 3)) == [b"yes0", b"yes1", b"yes2"]
    # Markers and aborted records are over with, too.
    eventually(lambda: queue_left(bootstrap, group, topic)[1] == 0, "nothing is left")


@pytest.mark.parametrize("flush", [False, True], ids=["page cache", "every record flushed"])
def test_acknowledgements_survive_kill_minus_nine(tmp_path: Path, share: OpenConsumer, flush: bool) -> None:
    properties = {**SHORT_LOCKS, **({"log.flush.interval.messages": 1} if flush else {})}
    with BrokerProcess(tmp_path, properties) as broker:
        topic, group = make_topic(broker.bootstrap), new_group(broker.bootstrap)
        write(broker.bootstrap, topic, *(str(number) for number in range(20)))
        consumer = share(group, topic, broker.bootstrap)
        first: list[Delivered] = []
        while len(first) < 20:
            for message in consumer.poll(5):
                first.append(delivered(message))
                accepted = first[-1][0] % 3
                consumer.acknowledge(message, AcknowledgeType.ACCEPT if accepted else AcknowledgeType.RELEASE)
        consumer.commit_sync()
        broker.kill()
        broker.start()
        again = take(share(group, topic, broker.bootstrap), 7)
        assert [offset for offset, _, _ in again] == [offset for offset in range(20) if offset % 3 == 0]
        assert {count for _, _, count in again} == {2}
        assert "Traceback" not in broker.output()

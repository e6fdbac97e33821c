"""A broker that does not lead a partition says who does."""

from __future__ import annotations

from typing import Any

from moldau.errors import ErrorCode
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, Record
from moldau.wire.apis import ApiKey
from moldau.wire.batch import encode_batch
from moldau.wire.messages import Schema, ms
from tests.unit.broker.offline import LISTENER, OfflineBroker

OTHER = 9
NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def lead_elsewhere(broker: OfflineBroker, topic: str) -> bytes:
    """Moves the only partition to another broker, where nobody listens; the topic's id."""

    def plan(image: MetadataImage) -> list[Record]:
        known = image.topics[topic]
        replicas = (broker.node.node_id, OTHER)
        moved = known.partitions[0].record(
            known.topic_id, leader=OTHER, replicas=replicas, isr=replicas, leader_epoch=1, partition_epoch=1
        )
        return [BrokerRecord(OTHER, image.version + 1, ((LISTENER, "127.0.0.1", 1, "PLAINTEXT"),)), moved]

    await broker.create(topic)
    broker.write(topic, 1)
    await broker.node.controller.change(plan)
    return broker.node.metadata.image.topics[topic].topic_id.bytes


async def test_a_produce_is_sent_to_the_leader(offline_broker: OfflineBroker) -> None:
    await lead_elsewhere(offline_broker, "moved")

    def produce(schema: Schema) -> Any:
        part = schema.PartitionProduceData(index=0, records=encode_batch([(None, b"value", 1, ())]))
        topic = schema.TopicProduceData(name="moved", partition_data=(part,))
        return schema.ProduceRequest(transactional_id=None, acks=-1, timeout=ms(5000), topic_data=(topic,))

    answer = await offline_broker.ask(ApiKey.PRODUCE, 10, produce)
    refused = answer.responses[0].partition_responses[0]
    assert refused.error_code == NOT_LEADER
    assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (OTHER, 1)
    assert [(one.node_id, one.host, one.port) for one in answer.node_endpoints] == [(OTHER, "127.0.0.1", 1)]


async def test_offsets_are_told_by_the_leader_only(offline_broker: OfflineBroker) -> None:
    await lead_elsewhere(offline_broker, "moved")

    def list_offsets(schema: Schema) -> Any:
        asked = schema.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        topic = schema.ListOffsetsTopic(name="moved", partitions=(asked,))
        return schema.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(topic,))

    answer = await offline_broker.ask(ApiKey.LIST_OFFSETS, 7, list_offsets)
    assert answer.topics[0].partitions[0].error_code == NOT_LEADER


async def test_a_follower_serves_consumers_up_to_its_high_watermark(offline_broker: OfflineBroker) -> None:
    topic_id = await lead_elsewhere(offline_broker, "moved")
    partition = offline_broker.node.find_partition(None, topic_id, 0)
    assert not partition.is_leader
    assert partition.log.high_watermark == 1, "what was committed before stays so"
    records = partition.log.read(0, 1000, upto_offset=partition.log.high_watermark, min_one=True)
    answer = await _fetch(offline_broker, 12)
    assert answer.responses[0].partitions[0].error_code == 0
    assert bytes(answer.responses[0].partitions[0].records) == bytes(records)
    answer = await _fetch(offline_broker, 10)
    assert answer.responses[0].partitions[0].error_code == NOT_LEADER, "clients so old know of leaders only"


async def _fetch(broker: OfflineBroker, version: int) -> Any:
    def fetch(schema: Schema) -> Any:
        asked = schema.FetchPartition(partition=0, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1000)
        topic = schema.FetchTopic(topic="moved", partitions=(asked,))
        return schema.FetchRequest(
            replica_id=-1,
            max_wait=ms(0),
            min_bytes=0,
            max_bytes=1000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(topic,),
            forgotten_topics_data=(),
        )

    return await broker.ask(ApiKey.FETCH, version, fetch)

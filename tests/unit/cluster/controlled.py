"""A controller over an image that takes every record at once, with a clock to turn, for the tests of this room."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from moldau.cluster.brokers import Heartbeat, HeartbeatReply, Registration
from moldau.cluster.controller import Controller
from moldau.cluster.isr_changes import IsrChangeRequest, IsrOutcome
from moldau.config.broker import BrokerConfig
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import BrokerRecord, ClusterRecord, ConfigRecord, PartitionRecord, Record, TopicRecord

SESSION_MS = 9_000
TOPIC = "t"
TOPIC_ID = uuid.UUID(int=7)


class Controlled:
    """Brokers 1, 2, … are registered and unfenced; topic `t` has the partitions it is given."""

    def __init__(self, brokers: int = 3, config: BrokerConfig | None = None, **topic_config: str) -> None:
        self.config = config or BrokerConfig()
        self.now_ms = 1_000_000
        self.image = MetadataImage().apply([ClusterRecord("c"), TopicRecord(TOPIC, TOPIC_ID)])
        self.do([ConfigRecord("topic", TOPIC, key.replace("_", "."), value) for key, value in topic_config.items()])
        self.controller = Controller(lambda: self.config, self.image, self.now_ms)
        self.lives: dict[int, int] = {}
        for broker_id in range(1, brokers + 1):
            self.register(broker_id)
            self.beat(broker_id)

    def do(self, records: Sequence[Record]) -> None:
        """Makes a step's records true; each partition has one of them at most, and its epoch counts them."""
        changed = [record for record in records if isinstance(record, PartitionRecord)]
        assert len({(record.topic_id, record.index) for record in changed}) == len(changed)
        for record in changed:
            topic = self.image.topic_by_id(record.topic_id)
            before = topic.partition(record.index) if topic is not None else None
            assert before is None or record.partition_epoch == before.partition_epoch + 1
            assert before is None or record.leader_epoch - before.leader_epoch in (0, 1)
        self.image = self.image.apply(records)

    def add(self, *replicas: int, **values: Any) -> int:
        """One more partition; its leader is the first of the ISR unless told otherwise."""
        index = len(self.image.topics[TOPIC].partitions)
        isr = values.pop("isr", replicas)
        leader = values.pop("leader", isr[0])
        self.do([PartitionRecord(TOPIC_ID, index, replicas, isr, leader, **values)])
        return index

    def part(self, index: int = 0, topic: str = TOPIC) -> PartitionImage:
        return self.image.topics[topic].partitions[index]

    def broker(self, broker_id: int) -> BrokerRecord:
        return self.image.brokers[broker_id]

    def epoch(self, broker_id: int) -> int:
        return self.broker(broker_id).broker_epoch

    def register(self, broker_id: int, *, clean: bool = True, **values: Any) -> int:
        """A new life of the broker."""
        self.lives[broker_id] = self.lives.get(broker_id, 0) + 1
        known = self.image.brokers.get(broker_id)
        asked = {
            "cluster_id": "c",
            "incarnation_id": f"life-{self.lives[broker_id]}",
            "endpoints": (("PLAINTEXT", "localhost", 9000 + broker_id, "PLAINTEXT"),),
            "previous_broker_epoch": known.broker_epoch if known is not None and clean else -1,
            **values,
        }
        records, epoch = self.controller.register(self.image, Registration(broker_id, **asked), self.now_ms)
        self.do(records)
        return epoch

    def beat(self, broker_id: int, *, offset: int | None = None, **wishes: bool) -> HeartbeatReply:
        offset = self.image.version if offset is None else offset
        beat = Heartbeat(broker_id, self.epoch(broker_id), offset, **wishes)
        records, reply = self.controller.heartbeat(self.image, beat, self.now_ms)
        self.do(records)
        return reply

    def die(self, broker_id: int) -> None:
        """Its port refuses connections."""
        self.do(self.controller.broker_died(self.image, broker_id, self.epoch(broker_id)))

    def revive(self, broker_id: int, *, clean: bool = True) -> None:
        self.register(broker_id, clean=clean)
        self.beat(broker_id)

    def pass_ms(self, elapsed_ms: int, *, beating: Sequence[int] = ()) -> list[Record]:
        self.now_ms += elapsed_ms
        for broker_id in beating:
            self.beat(broker_id)
        records = self.controller.tick(self.image, self.now_ms)
        self.do(records)
        return records

    def report_isr(self, *isr: int, index: int = 0, topic: str = TOPIC, **values: Any) -> IsrOutcome:
        """The leader reports another ISR."""
        partition = self.part(index, topic)
        asked = {
            "topic_id": self.image.topics[topic].topic_id,
            "index": index,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "new_isr": tuple((one, self.epoch(one) if one in self.image.brokers else 0) for one in isr),
            **values,
        }
        sender = asked.pop("sender", partition.leader)
        records, (outcome,) = self.controller.alter_partition(
            self.image, sender, self.epoch(sender), [IsrChangeRequest(**asked)]
        )
        self.do(records)
        return outcome

"""Whatever the network does, a partition's log holds every batch once, in order.

The brokers here are a model of Kafka's rules for sequences, on a network that loses requests and answers.
"""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.cluster import ClusterClient, Metadata, PartitionMetadata, TopicMetadata
from moldau.errors import ErrorCode, KafkaError
from moldau.spark.columns.encode import Rows, encode, no_headers, nulls, texts
from moldau.spark.sink.producing import IN_FLIGHT_MAX, Producer, ProducerIdentity
from moldau.spark.sink.write_options import WriteOptions
from moldau.wire.batch import decode_records, read_header
from moldau.wire.produce import parse_produce_request
from moldau.wire.uuids import ZERO_UUID
from tests.examples import examples

TOPIC = "out"
REMEMBERED = 5
LEADERS = 2


class PartitionLog:
    """Of one producer: a broker that knows nothing of it takes any first sequence, then only the next one."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self._next: int | None = None
        self._last: deque[int] = deque(maxlen=REMEMBERED)

    def append(self, records: memoryview) -> ErrorCode:
        header = read_header(records)
        if header.base_sequence in self._last:
            return ErrorCode.NONE
        if self._next is not None and header.base_sequence != self._next:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.values += [record.value for record in decode_records(records, 0, header)]
        self._next = header.base_sequence + header.count
        self._last.append(header.base_sequence)
        return ErrorCode.NONE


class Network:
    """Two leaders that swap their partitions now and then, and connections that break before or after an append."""

    def __init__(self, partitions: int, seed: int, trouble: float) -> None:
        self.config = WriteOptions.parse({"kafka.bootstrap.servers": "localhost:1"}).client
        self.logs = [PartitionLog() for _ in range(partitions)]
        self.swapped = False
        self.trouble = trouble
        self.random = random.Random(seed)
        self._connections: dict[int, ModelConnection] = {}

    def leader(self, partition: int) -> int:
        return (partition + self.swapped) % LEADERS

    def metadata(self, topics: list[str], *, allow_auto_topic_creation: bool = False) -> Metadata:
        partitions = tuple(PartitionMetadata(p, self.leader(p), 0, (0,), (0,)) for p in range(len(self.logs)))
        return Metadata(None, 0, {}, {TOPIC: TopicMetadata(TOPIC, ZERO_UUID, False, partitions)})

    def broker(self, node: int) -> ModelConnection:
        return self._connections.setdefault(node, ModelConnection(self, node))

    def forget(self, node: int) -> None:
        self._connections.pop(node, None)

    def happens(self) -> bool:
        return self.random.random() < self.trouble


class ModelConnection:
    session_is_over = False

    def __init__(self, network: Network, node: int) -> None:
        self._network = network
        self._node = node
        self._answers: deque[Any] = deque()
        self._is_broken = False

    def send_async(self, api_key: int, version: int, body: list[Any]) -> int:
        assert len(self._answers) < IN_FLIGHT_MAX
        if self._network.happens():
            self._network.swapped = not self._network.swapped
        self._is_broken = self._is_broken or self._network.happens()
        if self._is_broken:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost on the way there")
        request = parse_produce_request(version, memoryview(b"".join(body)))
        results = []
        for part in request.topics[0].partitions:
            assert part.records is not None
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self._network.leader(part.index) == self._node and not self._network.happens():
                code = self._network.logs[part.index].append(part.records)
            results.append(SimpleNamespace(index=part.index, error_code=code, record_errors=(), error_message=None))
        self._answers.append(SimpleNamespace(responses=[SimpleNamespace(name=TOPIC, partition_responses=results)]))
        return len(self._answers)

    def receive(self, api_key: int, version: int, number: int) -> Any:
        self._is_broken = self._is_broken or self._network.happens()
        if self._is_broken:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost on the way back")
        return self._answers.popleft()


def producer_on(network: Network, **given: str) -> Producer:
    named = {name.replace("__", "."): value for name, value in given.items()}
    options = WriteOptions.parse({"kafka.bootstrap.servers": "x:1", "kafka.retry.backoff.ms": "1"} | named)
    return Producer(cast(ClusterClient, network), options, ProducerIdentity(1, 0))


def send(producer: Producer, numbers: range, partitions: int) -> None:
    count = len(numbers)
    values = texts(pa.array([b"%d" % number for number in numbers], pa.binary()))
    rows = Rows(nulls(count), values, no_headers(count), np.zeros(count, np.int64))
    places = np.array([number % partitions for number in numbers], np.int32)
    producer.send(TOPIC, encode(rows, places, partitions, batch_bytes=150, record_bytes_max=1000))


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 1 << 30), partitions=st.integers(1, 4), trouble=st.sampled_from([0.0, 0.02, 0.1]))
def test_every_batch_is_in_its_log_once_and_in_order(seed: int, partitions: int, trouble: float) -> None:
    network = Network(partitions, seed, trouble)
    producer = producer_on(network)
    for start in range(0, 300, 100):
        send(producer, range(start, start + 100), partitions)
    producer.flush()
    for partition, log in enumerate(network.logs):
        assert log.values == [b"%d" % number for number in range(partition, 300, partitions)]


def test_a_batch_that_is_never_acknowledged_is_told_with_its_place_and_the_time_it_had() -> None:
    producer = producer_on(Network(1, 0, trouble=1.0), kafka__delivery__timeout__ms="30")
    with pytest.raises(KafkaError, match=r"partition 0 of topic 'out'.*kafka\.delivery\.timeout\.ms=30") as late:
        send(producer, range(10), 1)
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT

"""Idempotent producers: whatever is sent again is written once, and answered as the first time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau import Broker
from moldau.client.admin import Resource, alter_configs
from moldau.errors import ErrorCode
from moldau.wire.constants import ResourceType
from soak.broker_process import BrokerProcess
from tests.integration.conftest import NewTopic, cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of, produce_request, records_in
from tests.integration.waiting import eventually

Connect = Callable[..., RawClient]
IN_FLIGHT = 5


class Idempotent:
    """An idempotent producer of one partition, which sends whatever sequence it is told to."""

    def __init__(self, client: RawClient, topic: str, producer: tuple[int, int] | None = None) -> None:
        self.client = client
        self.topic = topic
        self.producer = producer or client.init_producer_id()

    def batch(self, sequence: int, count: int = 1, *, epoch: int | None = None) -> bytes:
        producer_id, current = self.producer
        who = (producer_id, current if epoch is None else epoch, sequence)
        return batch_of(*(b"%d" % (sequence + number) for number in range(count)), producer=who)

    def send(self, sequence: int, count: int = 1, **options: Any) -> tuple[ErrorCode, int]:
        answer = self.client.produce(self.topic, self.batch(sequence, count, **options))
        return ErrorCode(answer.error_code), answer.base_offset

    def values(self) -> list[bytes | None]:
        return [record.value for record in records_in(self.client.fetch(self.topic, 0).records)]


@pytest.fixture
def producer(connect: Connect, new_topic: NewTopic) -> Idempotent:
    return Idempotent(connect(), new_topic())


def test_each_of_the_last_five_batches_is_recognised_and_an_older_one_refused(producer: Idempotent) -> None:
    offsets = [producer.send(sequence, 2) for sequence in range(0, 14, 2)]
    assert offsets == [(ErrorCode.NONE, sequence) for sequence in range(0, 14, 2)]
    for sequence in range(4, 14, 2):
        assert producer.send(sequence, 2) == (ErrorCode.NONE, sequence)
    assert producer.send(2, 2)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(12, 1)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "half of a batch is not that batch"
    assert len(producer.values()) == 14


def test_five_requests_in_flight_of_which_one_got_lost_end_in_order(producer: Idempotent) -> None:
    requests = [produce_request(producer.topic, producer.batch(sequence)) for sequence in range(IN_FLIGHT)]
    arrived = [requests[0], *requests[2:]]
    for request in arrived:
        producer.client.send(request)
    codes = [
        ErrorCode(producer.client.receive(request)[1].responses[0].partition_responses[0].error_code)
        for request in arrived
    ]
    assert codes == [ErrorCode.NONE] + [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 3
    for sequence in range(1, IN_FLIGHT):
        assert producer.send(sequence)[0] is ErrorCode.NONE
    assert producer.values() == [b"%d" % number for number in range(IN_FLIGHT)]


def test_a_new_epoch_begins_anew_and_ends_the_old_one(producer: Idempotent) -> None:
    for sequence in range(3):
        producer.send(sequence)
    assert producer.send(3, epoch=1)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, epoch=1) == (ErrorCode.NONE, 3)
    assert producer.send(3, epoch=0)[0] is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(0, epoch=1) == (ErrorCode.NONE, 3), "a retry in the new epoch"


def test_every_idempotent_producer_gets_an_id_of_its_own(connect: Connect) -> None:
    client = connect()
    given = [client.init_producer_id() for _ in range(20)]
    assert len({producer_id for producer_id, _ in given}) == 20
    assert {epoch for _, epoch in given} == {0}


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill], ids=["stop", "kill -9"])
def test_retries_get_their_first_offset_after_a_restart(tmp_path: Path, end: Callable[[BrokerProcess], object]) -> None:
    with BrokerProcess(tmp_path) as broker:
        topic = make_topic(broker.bootstrap)
        with RawClient(broker.bootstrap) as client:
            before = Idempotent(client, topic)
            for sequence in range(8):
                assert before.send(sequence) == (ErrorCode.NONE, sequence)
        for _ in range(2):
            end(broker)
            broker.start()
            with RawClient(broker.bootstrap) as client:
                after = Idempotent(client, topic, before.producer)
                for sequence in range(3, 8):
                    assert after.send(sequence) == (ErrorCode.NONE, sequence)
                assert len(after.values()) == 8
        with RawClient(broker.bootstrap) as client:
            assert Idempotent(client, topic, before.producer).send(8) == (ErrorCode.NONE, 8)


def test_silent_producers_are_forgotten_when_the_key_says_so() -> None:
    with Broker({"producer.id.expiration.check.interval.ms": 20}) as broker:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap)
        with RawClient(bootstrap) as client:
            producer = Idempotent(client, topic)
            assert producer.send(0) == (ErrorCode.NONE, 0)
            assert producer.send(7)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            with cluster_at(bootstrap) as cluster:
                wanted = {"producer.id.expiration.ms": "1"}
                alter_configs(cluster, Resource(ResourceType.BROKER, ""), set_values=wanted)
            eventually(lambda: producer.send(7)[0] is ErrorCode.NONE, "nobody remembers the sequence")

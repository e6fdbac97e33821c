"""Stands for `broker.txn_markers`: a transaction's end comes into the partitions it wrote to, on whatever broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from moldau.coordinators.transactions.shard import Markers
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_SINCE
from moldau.errors import ErrorCode, KafkaError
from moldau.log.producer_state import AppendOrigin, EndTxnMarker
from moldau.wire.topic_partition import TopicPartition
from simulation.coordinator import NotNowError, when_committed
from simulation.log import Batch
from simulation.network import Answer, Failure
from simulation.replication import log_of
from simulation.world import MS

if TYPE_CHECKING:
    from simulation.broker import Broker

REPORT_RETRY_US = 200 * MS


class MarkerRequest(NamedTuple):
    markers: Markers
    partitions: Sequence[TopicPartition]
    coordinator_epoch: int


def write_markers(broker: Broker, request: MarkerRequest, answer: Answer) -> None:
    """Answers which partitions have their marker, once all that could be written is committed."""
    accepted: list[TopicPartition] = []
    waits = len(request.partitions)

    def done(where: TopicPartition, error: KafkaError | None) -> None:
        nonlocal waits
        waits -= 1
        if error is None:
            accepted.append(where)
        if not waits:
            answer(accepted)

    for where in request.partitions:
        try:
            _write(broker, where, request)
            partition = broker.find(where)
        except KafkaError as error:
            done(where, error)
            continue
        end_offset = log_of(partition).log_end_offset
        when_committed(partition, end_offset, lambda error, where=where: done(where, error))  # type: ignore[misc]


def _write(broker: Broker, where: TopicPartition, request: MarkerRequest) -> None:
    markers = request.markers
    producer = markers.producer
    partition = broker.find(where)
    partition.check_leads()
    known_epoch = log_of(partition).producers.epoch_of(producer.producer_id)
    if markers.version >= EPOCH_BUMP_SINCE and known_epoch >= producer.epoch:
        return  # it has this marker since an earlier try: as long as that is not safe, nor is the answer
    marker = EndTxnMarker(not markers.committed, request.coordinator_epoch)
    batch = Batch(("marker", markers.committed), producer.producer_id, producer.epoch, -1, True, marker)
    try:
        broker.append(partition, batch, AppendOrigin.COORDINATOR, required_acks=-1)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
            raise
    else:
        broker.services.marker_written(partition, markers)


class MarkerWriter:
    """The waiter to whom a shard of transactions gives its markers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def arrive(self, markers: Markers) -> None:
        broker = self._broker
        epoch = broker.services.transactions.epoch
        by_leader: dict[int, list[TopicPartition]] = {}
        for where in markers.partitions:
            by_leader.setdefault(broker.image.topics[where[0]].partitions[where[1]].leader, []).append(where)
        waits = len(by_leader)
        written: list[TopicPartition] = []

        def answered(accepted: list[TopicPartition] | Failure) -> None:
            nonlocal waits
            waits -= 1
            written.extend(() if isinstance(accepted, Failure) else accepted)
            if not waits:
                self._report(markers, written)

        for leader, partitions in by_leader.items():
            request = MarkerRequest(markers, partitions, epoch)
            known = broker.image.brokers.get(leader)
            if leader == broker.broker_id:
                write_markers(broker, request, answered)
            elif known is None or known.fenced:
                answered(Failure.REFUSED)
            else:
                broker.ask(leader, "write_markers", request, answered)

    def fail(self, error: Exception) -> None:
        """The shard is loaded again, and finds in its log whether the decision was made."""

    def _report(self, markers: Markers, written: Collection[TopicPartition]) -> None:
        transactions = self._broker.services.transactions
        if transactions.shard is None or transactions.shard.marker_writer is not self:
            return
        try:
            transactions.run(lambda shard, now_ms: shard.markers_written(markers, written, now_ms))
        except NotNowError:
            self._broker.after(REPORT_RETRY_US, self._report, markers, written)
        except KafkaError as error:
            self._broker.world.note("{}: an end was not recorded: {}", self._broker.name, error.code.name)

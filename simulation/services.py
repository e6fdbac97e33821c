"""What a broker does for clients: append, read, commit offsets, run transactions; and its end of what their
coordinators ask of other brokers.

Stands for the handlers of Produce, Fetch, OffsetCommit and the transactional requests.
Clients speak version 2 of transactions: an append adds its partition (`admission`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.broker.coordination.coordinators import ImageTopics
from moldau.broker.coordination.remote_transactions import VerificationGuard
from moldau.broker.replicas.partition import Partition
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.offsets.commits import Commit, Fetch, commit, fetch
from moldau.coordinators.transactions.shard import AddPartitions, EndTxn, InitProducerId, Markers, TransactionShard
from moldau.coordinators.transactions.transaction import Identity, ProducerIdNeeded
from moldau.errors import DuplicateSequenceError, ErrorCode, KafkaError
from moldau.log.producer_state import AppendOrigin
from moldau.wire.constants import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from simulation.admission import Admission
from simulation.coordinator import Coordinator, when_committed
from simulation.log import Batch, Entry, TopicPartition
from simulation.markers import MarkerRequest, MarkerWriter, write_markers
from simulation.network import Answer, Failure
from simulation.replication import log_of
from simulation.world import MS

if TYPE_CHECKING:
    from simulation.broker import Broker

NOT_SERVING_US = 50 * MS
READ_MAX = 50

_BETWEEN_BROKERS = frozenset({"fetch", "add_partitions", "write_markers"})


class Produce(NamedTuple):
    where: TopicPartition
    batch: Batch
    transactional_id: str = ""


class Read(NamedTuple):
    """What a reader of committed transactions gets."""

    entries: tuple[Entry, ...]
    next_offset: int


class Services:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        topics: Any = broker
        self.groups = Coordinator(
            broker,
            GROUPS_TOPIC,
            lambda: GroupShard(lambda: broker.config, ImageTopics(topics), wall_clock=broker.wall_clock),
        )
        self.transactions = Coordinator(
            broker,
            TRANSACTIONS_TOPIC,
            lambda: TransactionShard(lambda: broker.config, MarkerWriter(broker), wall_clock=broker.wall_clock),
        )
        self.guards: dict[VerificationGuard, None] = {}
        self._ids = range(0)

    def follow(self) -> None:
        self.groups.follow()
        self.transactions.follow()

    def handler_of(self, what: str) -> Callable[[Any, Answer], None]:
        handler: Callable[[Any, Answer], None] = getattr(self, "on_" + what)
        if self._broker.is_serving or what in _BETWEEN_BROKERS:
            return handler
        return lambda request, answer: self._broker.after(NOT_SERVING_US, self._when_serving, what, request, answer)

    def _when_serving(self, what: str, request: Any, answer: Answer) -> None:
        self.handler_of(what)(request, answer)

    # -- metadata

    def on_metadata(self, _: object, answer: Answer) -> None:
        answer(self._broker.image)

    def on_admin(self, step: Any, answer: Answer) -> None:
        self._broker.controller.run(step, answer)

    # -- records

    def on_produce(self, request: Produce, answer: Answer) -> None:
        try:
            partition = self._broker.find(request.where)
            partition.check_leads()
        except KafkaError as error:
            answer(error)
            return
        if not request.transactional_id:
            self._append(partition, request.batch, answer)
            return
        batch = request.batch
        producer = Identity(batch.producer_id, batch.producer_epoch)

        def admitted(refusal: KafkaError | None) -> None:
            known_epoch = log_of(partition).producers.epoch_of(producer.producer_id)
            if refusal is not None:
                answer(refusal)
            elif batch.sequence > 0 and known_epoch < 0:
                answer(KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
            else:
                self._append(partition, batch, answer)

        Admission(self._broker, request.transactional_id, producer, partition, admitted).begin()

    def _append(self, partition: Partition, batch: Batch, answer: Answer) -> None:
        try:
            offset = self._broker.append(partition, batch, AppendOrigin.CLIENT, required_acks=-1).base_offset
        except DuplicateSequenceError as duplicate:
            offset = duplicate.base_offset
        except KafkaError as error:
            answer(error)
            return
        when_committed(partition, offset + 1, lambda error: answer(offset if error is None else error))

    def on_consume(self, request: tuple[TopicPartition, int], answer: Answer) -> None:
        where, offset = request
        broker = self._broker
        try:
            partition = broker.find(where)
            partition.check_leads()
        except KafkaError as error:
            answer(error)
            return
        log = log_of(partition)
        broker.checker.watermark_seen(log, partition.leader_epoch, broker.life, log.high_watermark)
        entries = log.read(offset, log.last_stable_offset, READ_MAX)
        shown = tuple(one for one in entries if one.batch.marker is None and not log.is_aborted(one))
        answer(Read(shown, offset + len(entries)))

    # -- transactions

    def on_add_partitions(self, request: AddPartitions, answer: Answer) -> None:
        self.transactions.ask(lambda shard, reply, now_ms: shard.add_partitions(reply, request, now_ms), answer)

    def on_init_producer_id(self, request: InitProducerId, answer: Answer) -> None:
        self._ask_with_id(request, TransactionShard.init_producer_id, answer)

    def on_end_txn(self, request: EndTxn, answer: Answer) -> None:
        self._ask_with_id(request, TransactionShard.end, answer)

    def _ask_with_id(self, request: InitProducerId | EndTxn, step: Callable[..., Any], answer: Answer) -> None:
        try:
            self.transactions.ask(lambda shard, reply, now_ms: step(shard, reply, request, now_ms), answer)
        except ProducerIdNeeded:

            def given(producer_id: int | KafkaError) -> None:
                if isinstance(producer_id, KafkaError):
                    answer(producer_id)
                    return
                fresh = request._replace(fresh_id=producer_id)
                self.transactions.ask(lambda shard, reply, now_ms: step(shard, reply, fresh, now_ms), answer)

            self.on_producer_id(None, given)

    def on_producer_id(self, _: object, answer: Answer) -> None:
        broker = self._broker

        def given(block: range | KafkaError | Failure) -> None:
            if isinstance(block, range):
                if not self._ids:
                    self._ids = block
                self.on_producer_id(None, answer)
            else:
                answer(block if isinstance(block, KafkaError) else KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

        if not self._ids:
            broker.ask_controller("allocate_ids", (broker.broker_id, broker.broker_epoch), given)
            return
        producer_id, self._ids = self._ids[0], self._ids[1:]
        broker.checker.ids_given([producer_id])
        answer(producer_id)

    def on_allocate_ids(self, request: tuple[int, int], answer: Answer) -> None:
        self._broker.controller.run(lambda machine, image: machine.allocate_producer_ids(image, *request), answer)

    def on_write_markers(self, request: MarkerRequest, answer: Answer) -> None:
        write_markers(self._broker, request, answer)

    def marker_written(self, partition: Partition, markers: Markers) -> None:
        for guard in self.guards:
            guard.marker_written(partition, markers.producer, markers.version)
        if partition.topic == GROUPS_TOPIC:
            self.groups.marker_written(markers.producer.producer_id, markers.committed)

    # -- offsets

    def on_offset_commit(self, request: Commit, answer: Answer) -> None:
        self.groups.ask(lambda shard, reply, now_ms: commit(shard, reply, request, now_ms), answer)

    def on_txn_offset_commit(self, request: tuple[str, Commit], answer: Answer) -> None:
        transactional_id, asked = request
        assert asked.producer is not None
        producer = Identity(*asked.producer)
        try:
            self.groups.here()
            partition = self._broker.find(self.groups.where)
            _check_producer(partition, producer)
        except KafkaError as error:
            answer(error)
            return

        def admitted(refusal: KafkaError | None) -> None:
            try:
                if refusal is not None:
                    raise refusal
                _check_producer(partition, producer)
            except KafkaError as error:
                answer(error)
            else:
                self.on_offset_commit(asked, answer)

        Admission(self._broker, transactional_id, producer, partition, admitted).begin()

    def on_offset_fetch(self, request: Fetch, answer: Answer) -> None:
        def settled(error: KafkaError | None) -> None:
            try:
                answer(fetch(self.groups.here(), request) if error is None else error)
            except KafkaError as refusal:
                answer(refusal)

        self.groups.settled(settled)


def _check_producer(partition: Partition, producer: Identity) -> None:
    if producer.epoch < log_of(partition).producers.epoch_of(producer.producer_id):
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)

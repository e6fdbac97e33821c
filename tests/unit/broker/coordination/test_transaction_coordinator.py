"""A transaction whose broker dies at every one of its writes, one after the other, and comes back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.cluster.standalone import METADATA_FILE
from moldau.broker.node import BrokerNode
from moldau.config.broker import BrokerConfig
from moldau.errors import RETRIABLE, ErrorCode, KafkaError, StorageError
from moldau.log.partition_log import PartitionLog
from moldau.metadata.records import ConfigRecord
from moldau.wire.apis import ApiKey
from moldau.wire.batch import decode_records, encode_batch, iter_headers
from moldau.wire.messages import ms
from tests.unit.broker.offline import ADVERTISED, LISTENER, OfflineBroker

ID = "t"
PARTITIONS = 3


class Died(BaseException):
    """kill -9."""


class Deadly:
    """Dies at the `at`-th append of any log: before it, or with it done and nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0
        self.after = False
        self.count = 0
        self.died = False
        append = PartitionLog.append

        def counted(log: PartitionLog, *args: Any, **options: Any) -> Any:
            self.check()
            self.count += 1
            self.died = self.count == self.at
            if not self.after:
                self.check()
            info = append(log, *args, **options)
            self.check()
            return info

        monkeypatch.setattr(PartitionLog, "append", counted)

    def check(self) -> None:
        """The dead do nothing, though a timer of the loop may have been where it happened."""
        if self.died:
            raise Died

    def next_life(self, at: int) -> None:
        self.count, self.at, self.died = 0, at, False


class Lives:
    """Brokers, each with the files of the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[BrokerNode] = []

    def next(self) -> OfflineBroker:
        data = self._folder / str(len(self._nodes))
        if self._nodes:
            shutil.copytree(self._folder / str(len(self._nodes) - 1), data)
        config, _ = BrokerConfig.from_properties(
            {"log.dirs": str(data), "transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
        )
        node = BrokerNode(config, asyncio.get_running_loop())
        node.open()
        node.begin()
        node.is_serving.set()
        node.local.advertised[LISTENER] = ADVERTISED
        self._nodes.append(node)
        return OfflineBroker(node)

    async def close(self) -> None:
        for node in self._nodes:
            await node.close()


@pytest.fixture
async def lives(tmp_path: Path) -> AsyncIterator[Lives]:
    all_lives = Lives(tmp_path)
    yield all_lives
    await all_lives.close()


class Producer:
    """Asks until it is answered, whoever answers; what it has been told stays true."""

    def __init__(self, version: int, is_alive: Callable[[], None] = lambda: None) -> None:
        self.version = version
        self._is_alive = is_alive
        self.producer_id = self.epoch = -1
        self.done: set[str] = set()
        self.asked: set[str] = set()
        self._sequence = 0

    def next_transaction(self) -> None:
        """Of the same epoch, in version 1."""
        self.done = self.asked = {"init"}
        self._sequence += 1

    async def run(self, broker: OfflineBroker, *, commits: bool) -> None:
        """The steps that have not been answered yet."""
        steps: list[tuple[str, Callable[[OfflineBroker], Any]]] = [("init", self._init)]
        for index in range(PARTITIONS):
            if self.version < 2:
                steps.append((f"add {index}", partial(self._add, index=index)))
            steps.append((f"send {index}", partial(self._send, index=index)))
        steps.append(("end", lambda broker: self._end(broker, commits)))
        for name, step in steps:
            if name in self.done:
                continue
            self.asked = self.asked | {name}
            while (code := await step(broker)) in RETRIABLE:
                await asyncio.sleep(0.001)
                self._is_alive()
            assert code is ErrorCode.NONE, f"{name}: {code.name}"
            self.done.add(name)

    async def _init(self, broker: OfflineBroker) -> ErrorCode:
        answer = await broker.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            lambda schema: schema.InitProducerIdRequest(
                transactional_id=ID, transaction_timeout=ms(60_000), producer_id=-1, producer_epoch=-1
            ),
        )
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    async def _add(self, broker: OfflineBroker, index: int) -> ErrorCode:
        answer = await broker.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            lambda schema: schema.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=(schema.AddPartitionsToTxnTopic(name="orders", partitions=(index,)),),
            ),
        )
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def _send(self, broker: OfflineBroker, index: int) -> ErrorCode:
        batch = encode_batch(
            [(None, b"%d" % index, 1_700_000_000_000, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        answer = await broker.ask(
            ApiKey.PRODUCE,
            12 if self.version >= 2 else 10,
            lambda schema: schema.ProduceRequest(
                transactional_id=ID,
                acks=-1,
                timeout=ms(1000),
                topic_data=(
                    schema.TopicProduceData(
                        name="orders", partition_data=(schema.PartitionProduceData(index=index, records=batch),)
                    ),
                ),
            ),
        )
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    async def _end(self, broker: OfflineBroker, commits: bool) -> ErrorCode:
        answer = await broker.ask(
            ApiKey.END_TXN,
            5 if self.version >= 2 else 4,
            lambda schema: schema.EndTxnRequest(
                transactional_id=ID, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commits
            ),
        )
        return ErrorCode(answer.error_code)


async def is_complete(broker: OfflineBroker, is_alive: Callable[[], None] = lambda: None) -> None:
    while True:
        is_alive()
        try:
            if broker.node.transactions.shard(ID).transactions[ID].state.label.startswith("Complete"):
                return
        except KafkaError:
            pass
        await asyncio.sleep(0.001)


def committed(broker: OfflineBroker, index: int) -> list[bytes | None]:
    log = broker.node.find_partition("orders", None, index).log
    assert log.last_stable_offset == log.log_end_offset, "a transaction hangs"
    if log.aborted_transactions(0, log.log_end_offset):
        return []
    data = bytes(log.read(0, 1 << 20, upto_offset=log.log_end_offset, min_one=True))
    return [
        record.value
        for position, header in iter_headers(data)
        if not header.is_control
        for record in decode_records(data, position, header)
    ]


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_transaction_is_whole_whichever_write_the_broker_dies_at(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, version: int, commits: bool, after: bool
) -> None:
    broker = lives.next()
    await broker.create("orders", PARTITIONS)
    await broker.node.transactions.ready()
    deadly = Deadly(monkeypatch)
    deadly.after = after
    deaths = 0
    producer = Producer(version, deadly.check)
    while True:
        # One death per life, each at a write further on in what is left to do.
        deadly.next_life(deaths % 4 + 1 if deaths < 16 else 0)
        try:
            await producer.run(broker, commits=commits)
            await asyncio.wait_for(is_complete(broker, deadly.check), 10)
            break
        except Died:
            deaths += 1
            broker = lives.next()
    assert deaths > 3
    expected = [[b"%d" % index] if commits else [] for index in range(PARTITIONS)]
    assert [committed(broker, index) for index in range(PARTITIONS)] == expected


@pytest.mark.parametrize("version", [1, 2])
async def test_a_marker_that_the_disk_refuses_is_written_when_it_can_be(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    broker = lives.next()
    await broker.create("orders", PARTITIONS)
    await broker.node.transactions.ready()
    producer = Producer(version)
    append = PartitionLog.append
    refused = 0

    def refusing(log: PartitionLog, records: Any, **options: Any) -> Any:
        nonlocal refused
        if (log.topic, log.partition) == ("orders", 1) and options.get("origin") and refused < 2:
            refused += 1
            raise StorageError("the disk is full")
        return append(log, records, **options)

    monkeypatch.setattr(PartitionLog, "append", refusing)
    monkeypatch.setattr("moldau.coordinators.transactions.shard.MARKERS_RETRY_MS", 5)
    await producer.run(broker, commits=True)
    assert broker.node.transactions.shard(ID).transactions[ID].partitions == {("orders", 1)}
    await asyncio.wait_for(is_complete(broker), 10)
    assert refused == 2
    assert [committed(broker, index) for index in range(PARTITIONS)] == [[b"0"], [b"1"], [b"2"]]


async def test_markers_of_a_shard_that_was_loaded_again_say_nothing_of_the_next_transaction(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In version 1 two transactions of a producer look alike: the report of the first must not end the second."""
    broker = lives.next()
    await broker.create("orders", PARTITIONS, flush_messages="1")
    await broker.node.transactions.ready()
    monkeypatch.setattr("moldau.broker.coordination.coordinator_shell.RELOAD_DELAY_S", 0.0)
    monkeypatch.setattr("moldau.coordinators.transactions.shard.MARKERS_RETRY_MS", 5)
    producer = Producer(1)
    transactions = broker.node.transactions
    flushed, held = broker.node.group_commit.flushed, list[asyncio.Future[None]]()
    append, refuses = PartitionLog.append, False

    def slow(log: PartitionLog) -> asyncio.Future[None]:
        """The disk takes its time over the first markers."""
        if "end" in producer.asked and log.topic == "orders" and len(held) < PARTITIONS:
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]
        return flushed(log)

    def refusing(log: PartitionLog, records: Any, **options: Any) -> Any:
        if refuses and log.topic == "orders" and options.get("origin"):
            raise StorageError("the disk is full")
        return append(log, records, **options)

    monkeypatch.setattr(broker.node.group_commit, "flushed", slow)
    monkeypatch.setattr(PartitionLog, "append", refusing)
    await producer.run(broker, commits=True)
    while len(held) < PARTITIONS:
        await asyncio.sleep(0.001)
    why = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "for a test")
    transactions._reload(transactions.partition_for(ID), transactions.shard(ID), why)
    await asyncio.wait_for(is_complete(broker), 10)
    refuses = True
    producer.next_transaction()
    await producer.run(broker, commits=False)
    for one in held:
        one.set_result(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert transactions.shard(ID).transactions[ID].is_prepared, "no partition has the marker of the second"
    refuses = False
    await asyncio.wait_for(is_complete(broker), 10)
    for index in range(PARTITIONS):
        log = broker.node.find_partition("orders", None, index).log
        assert log.last_stable_offset == log.log_end_offset, "a transaction hangs"
        assert len(log.aborted_transactions(0, log.log_end_offset)) == 1


async def test_markers_are_as_safe_as_the_decision_that_they_were_written(lives: Lives) -> None:
    """After a loss of power nobody would write them again: the transaction would hang."""
    broker = lives.next()
    await broker.create("orders", PARTITIONS)
    transactions = broker.node.transactions
    await transactions.ready()
    flushed = [ConfigRecord("topic", transactions.topic, "flush.messages", "1")]
    await broker.node.controller.change(lambda _: flushed)
    await Producer(2).run(broker, commits=True)
    await asyncio.wait_for(is_complete(broker), 10)
    for index in range(PARTITIONS):
        assert broker.node.find_partition("orders", None, index).log.unflushed_messages == 0


async def test_markers_from_outside_are_flushed_where_every_record_is(lives: Lives) -> None:
    broker = lives.next()
    await broker.create("orders", flush_messages="1")
    answer = await broker.ask(
        ApiKey.WRITE_TXN_MARKERS,
        1,
        lambda schema: schema.WriteTxnMarkersRequest(
            markers=(
                schema.WritableTxnMarker(
                    producer_id=7,
                    producer_epoch=0,
                    transaction_result=False,
                    topics=(schema.WritableTxnMarkerTopic(name="orders", partition_indexes=(0, 1)),),
                    coordinator_epoch=0,
                ),
            )
        ),
    )
    codes = [one.error_code for one in answer.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    log = broker.node.find_partition("orders", None, 0).log
    assert (log.log_end_offset, log.unflushed_messages) == (1, 0)


async def test_a_transaction_ends_although_its_state_topic_grew_meanwhile(lives: Lives) -> None:
    broker = lives.next()
    await broker.create("orders", PARTITIONS)
    transactions = broker.node.transactions
    await transactions.ready()
    producer = Producer(2)
    assert await producer._init(broker) is ErrorCode.NONE
    assert await producer._send(broker, 0) is ErrorCode.NONE
    home = transactions.partition_for(ID)
    shard = transactions.shard(ID)
    await broker.ask(
        ApiKey.CREATE_PARTITIONS,
        3,
        lambda schema: schema.CreatePartitionsRequest(
            topics=(schema.CreatePartitionsTopic(name=transactions.topic, count=7, assignments=None),),
            timeout=ms(1000),
            validate_only=False,
        ),
    )
    assert transactions.partition_for(ID) != home
    shard.transactions[ID].deadline_ms = -1
    transactions.run(home, lambda shard, now_ms: shard.wake(("timeout", ID), now_ms))
    assert shard.transactions[ID].state.label == "CompleteAbort"
    assert committed(broker, 0) == []


async def test_producer_ids_of_an_adopted_folder_are_not_given_again(lives: Lives, tmp_path: Path) -> None:
    """As Apache Kafka leaves it: no metadata of ours, and an id that is in no partition but the coordinator's."""
    broker = lives.next()
    await broker.node.transactions.ready()
    first = Producer(2)
    assert await first._init(broker) is ErrorCode.NONE
    (tmp_path / "0" / METADATA_FILE).unlink()
    adopted = lives.next()
    while adopted.node.transactions.is_loading:
        await asyncio.sleep(0.001)
    assert adopted.node.metadata.topic_config(adopted.node.transactions.topic).compact
    assert await adopted.node.producer_ids.take() > first.producer_id
    assert await first._init(adopted) is ErrorCode.NONE
    assert first.epoch == 1

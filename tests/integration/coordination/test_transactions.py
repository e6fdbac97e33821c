"""Transactions on the wire: who may write, when it counts, who sees it; in both versions, request by request."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from moldau import Broker
from moldau.client.admin import delete_topics
from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import ms, request_schema
from tests.integration.conftest import NewTopic, cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of, fetch_request, produce_request, records_in
from tests.integration.raw_txn import READ_COMMITTED, RawProducer, committed_values, last_stable_offset
from tests.integration.waiting import eventually

Connect = Callable[..., RawClient]
VERSIONS = (1, 2)


@pytest.fixture(params=VERSIONS, ids=["v1", "v2"])
def producer(connect: Connect, request: pytest.FixtureRequest) -> RawProducer:
    return RawProducer(connect(), version=request.param).init()


@pytest.fixture(scope="module")
def hasty_broker() -> Iterator[Broker]:
    """It looks for transactions past their timeout all the time."""
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}) as broker:
        yield broker


# -- what readers see


def test_records_count_when_their_transaction_commits(
    connect: Connect, new_topic: NewTopic, producer: RawProducer
) -> None:
    topic = new_topic(2)
    reader = connect()
    producer.write(topic, b"a", b"b")
    producer.write(topic, b"c", partition=1)
    assert committed_values(reader, topic) == committed_values(reader, topic, 1) == []
    assert len(records_in(reader.fetch(topic, 0).records)) == 2
    assert last_stable_offset(reader, topic) == 0
    producer.commit()
    assert committed_values(reader, topic) == [b"a", b"b"]
    assert committed_values(reader, topic, 1) == [b"c"]
    assert last_stable_offset(reader, topic) == 3


def test_aborted_records_are_named_to_readers_of_committed_ones(
    connect: Connect, new_topic: NewTopic, producer: RawProducer
) -> None:
    topic = new_topic()
    reader = connect()
    producer.write(topic, b"1")
    producer.commit()
    first = producer.write(topic, b"no", b"no")
    aborted_by = producer.producer_id
    producer.abort()
    producer.write(topic, b"2")
    producer.commit()
    answer = reader.fetch(topic, 0, isolation_level=READ_COMMITTED)
    assert [(one.producer_id, one.first_offset) for one in answer.aborted_transactions] == [(aborted_by, first)]
    assert committed_values(reader, topic) == [b"1", b"2"]


def test_the_oldest_open_transaction_holds_back_what_comes_behind_it(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    reader = connect()
    slow, quick = RawProducer(connect()).init(), RawProducer(connect()).init()
    slow.write(topic, b"slow")
    quick.write(topic, b"quick")
    quick.commit()
    reader.produce(topic, batch_of(b"plain"))
    assert committed_values(reader, topic) == []
    slow.abort()
    assert committed_values(reader, topic) == [b"quick", b"plain"]


def test_a_waiting_reader_of_committed_records_wakes_when_the_transaction_ends_and_not_before(
    connect: Connect, new_topic: NewTopic, producer: RawProducer
) -> None:
    topic = new_topic()
    waiting, impatient = connect(), connect()
    request = fetch_request([(topic, 0, 0)], max_wait_ms=20_000, min_bytes=500, isolation_level=READ_COMMITTED)
    waiting.send(request)
    impatient.send(fetch_request([(topic, 0, 0)], max_wait_ms=20_000, min_bytes=500))
    producer.write(topic, bytes(1000))
    assert impatient.has_answer(10)
    assert not waiting.has_answer(0.2)
    producer.commit()
    assert waiting.has_answer(10)
    part = waiting.receive(request)[1].responses[0].partitions[0]
    assert records_in(part.records)[0].value == bytes(1000)


# -- zombies


def test_a_new_producer_of_the_same_id_aborts_and_fences_the_one_before(
    connect: Connect, new_topic: NewTopic, producer: RawProducer
) -> None:
    topic = new_topic()
    producer.write(topic, b"zombie")
    successor = RawProducer(connect(), producer.transactional_id, version=producer.version)
    successor.find_coordinator()
    assert successor.init_once() is ErrorCode.CONCURRENT_TRANSACTIONS
    successor.init()
    assert producer.send(topic, b"late").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add((topic, 0)) == [ErrorCode.PRODUCER_FENCED]
    assert producer.add((topic, 0), version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert producer.end(True) is ErrorCode.PRODUCER_FENCED
    assert producer.end(True, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    successor.write(topic, b"successor")
    successor.commit()
    assert committed_values(connect(), topic) == [b"successor"]


def test_a_fenced_producer_cannot_come_back(connect: Connect, producer: RawProducer) -> None:
    old = (producer.producer_id, producer.epoch)
    RawProducer(connect(), producer.transactional_id).init()
    RawProducer(connect(), producer.transactional_id).init()
    assert producer.init_once(expected=old) is ErrorCode.PRODUCER_FENCED
    assert producer.init_once(expected=old, version=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.init_once(expected=(old[0] + 1000, 0)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_that_takes_too_long_is_aborted(hasty_broker: Broker, version: int) -> None:
    bootstrap = hasty_broker.bootstrap_servers
    topic = make_topic(bootstrap)
    with RawClient(bootstrap) as client:
        producer = RawProducer(client, version=version).init(timeout_ms=50)
        producer.write(topic, b"too slow")
        eventually(lambda: last_stable_offset(client, topic) == 2, "the transaction is aborted")
        assert producer.describe().transaction_state == "CompleteAbort"
        assert producer.send(topic, b"more").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        refusal = ErrorCode.PRODUCER_FENCED if version == 1 else ErrorCode.INVALID_TXN_STATE
        assert producer.end(True) is refusal
        assert committed_values(client, topic) == []
        producer.init()
        producer.write(topic, b"again")
        producer.commit()
        assert committed_values(client, topic) == [b"again"]


# -- late requests (KIP-890)


def test_a_batch_that_comes_after_its_transactions_end_is_fenced_in_version_2(
    connect: Connect, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = RawProducer(connect()).init()
    who = (producer.producer_id, producer.epoch)
    producer.write(topic, b"in time")
    producer.commit()
    assert (producer.producer_id, producer.epoch) == (who[0], who[1] + 1)
    late = producer.send(topic, b"late", producer=who, sequence=1)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert last_stable_offset(connect(), topic) == 2
    producer.write(topic, b"next")
    late = producer.send(topic, b"late", producer=who, sequence=1)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    producer.commit()
    assert committed_values(connect(), topic) == [b"in time", b"next"]


@pytest.mark.parametrize(
    ("produce_version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_a_batch_without_an_open_transaction_is_refused_in_version_1(
    connect: Connect, new_topic: NewTopic, produce_version: int, code: ErrorCode
) -> None:
    topic = new_topic()
    producer = RawProducer(connect(), version=1).init()
    assert producer.send(topic, b"never added", produce_version=produce_version).error_code == code
    producer.write(topic, b"in time")
    producer.commit()
    assert producer.send(topic, b"late", produce_version=produce_version).error_code == code
    assert last_stable_offset(connect(), topic) == 2


def test_an_end_that_is_asked_again_gets_the_same_answer(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = RawProducer(connect()).init()
    before = (producer.producer_id, producer.epoch)
    producer.write(topic, b"once")
    producer.commit()
    after = (producer.producer_id, producer.epoch)
    assert producer.end(True, producer=before) is ErrorCode.NONE
    assert (producer.producer_id, producer.epoch) == after
    assert producer.end(False, producer=before) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(True) is ErrorCode.INVALID_TXN_STATE, "there is nothing to commit"
    assert producer.end(False) is ErrorCode.NONE, "a client that does not know may abort nothing"
    assert producer.epoch == after[1] + 1


def test_an_old_clients_end_is_idempotent_by_its_state(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = RawProducer(connect(), version=1).init()
    assert producer.end(True) is ErrorCode.INVALID_TXN_STATE
    producer.write(topic, b"once")
    for version in range(5):
        assert producer.end(True, version=version) is ErrorCode.NONE
    assert producer.end(False) is ErrorCode.INVALID_TXN_STATE
    assert len(records_in(connect().fetch(topic, 0).records)) == 2


# -- what is refused


def test_ids_and_timeouts_have_to_make_sense(connect: Connect) -> None:
    producer = RawProducer(connect())
    producer.find_coordinator()
    assert producer.init_once(timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init_once(timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init_once(expected=(5, -1)) is ErrorCode.INVALID_REQUEST
    assert producer.end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    producer.init()
    producer.producer_id += 1
    assert producer.end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    nobody = RawProducer(connect())
    nobody.transactional_id = ""
    assert nobody.init_once() is ErrorCode.INVALID_REQUEST
    assert nobody.end(True) is ErrorCode.INVALID_REQUEST
    assert nobody.describe().error_code == ErrorCode.INVALID_REQUEST


def test_partitions_are_added_all_or_none(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = RawProducer(connect(), version=1).init()
    for version in range(4):
        assert producer.add((topic, 0), ("nowhere", 0), (topic, 7), version=version) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
    assert producer.describe().transaction_state == "Empty"


def test_records_of_several_producers_in_one_request_are_refused(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    producer = RawProducer(connect()).init()
    schema = request_schema(ApiKey.PRODUCE, 12)
    who = (producer.producer_id, producer.epoch)
    batches = [batch_of(b"x", producer=(who[0] + number, who[1], 0), is_transactional=True) for number in range(2)]
    answer = producer.client.ask(
        schema.ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout=ms(1000),
            topic_data=(
                schema.TopicProduceData(
                    name=topic,
                    partition_data=tuple(
                        schema.PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)
                    ),
                ),
            ),
        )
    )
    codes = {one.error_code for one in answer.responses[0].partition_responses}
    assert codes == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize("version", [10, 12])
@pytest.mark.parametrize("stranger_first", [True, False])
def test_a_strangers_batch_beside_a_good_one_never_holds_readers_up(
    connect: Connect, new_topic: NewTopic, version: int, stranger_first: bool
) -> None:
    """Nobody would ever end its transaction, and readers of committed records would wait there for good."""
    topic = new_topic()
    producer = RawProducer(connect(), version=2 if version >= 12 else 1).init()
    producer.write(topic, b"good")
    who = (producer.producer_id, producer.epoch, 1)
    stranger = (producer.producer_id + 1000, 0, 0)
    batches = [batch_of(b"x", producer=one, is_transactional=True) for one in (who, stranger)]
    if stranger_first:
        batches.reverse()
    one, other = (
        produce_request(topic, batch, version=version, transactional_id=producer.transactional_id) for batch in batches
    )
    parts = (*one.topic_data[0].partition_data, *other.topic_data[0].partition_data)
    for topics in (
        (replace(one.topic_data[0], partition_data=parts),),  # the topic once, its partition twice
        (*one.topic_data, *other.topic_data),  # the topic twice
    ):
        answer = producer.client.ask(replace(one, topic_data=topics))
        codes = [part.error_code for found in answer.responses for part in found.partition_responses]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert producer.send(topic, b"more").error_code == 0
    producer.commit()
    assert committed_values(connect(), topic) == [b"good", b"more"]
    assert last_stable_offset(connect(), topic) == 3


def test_the_first_batch_of_a_transaction_has_to_come_first(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = RawProducer(connect()).init()
    assert producer.send(topic, b"second", sequence=1).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.write(topic, b"first")
    producer.write(topic, b"second")
    producer.commit()
    assert committed_values(connect(), topic) == [b"first", b"second"]


def test_the_coordinator_verifies_and_adds_for_other_brokers(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    producer = RawProducer(connect()).init()
    for version, verify_only, wanted in [
        (4, True, ErrorCode.TRANSACTION_ABORTABLE),
        (5, False, ErrorCode.NONE),
        (5, True, ErrorCode.NONE),
    ]:
        schema = request_schema(ApiKey.ADD_PARTITIONS_TO_TXN, version)
        answer = producer.client.ask(
            schema.AddPartitionsToTxnRequest(
                transactions=(
                    schema.AddPartitionsToTxnTransaction(
                        transactional_id=producer.transactional_id,
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                        verify_only=verify_only,
                        topics=(schema.AddPartitionsToTxnTopic(name=topic, partitions=(0, 1)),),
                    ),
                )
            )
        )
        results = answer.results_by_transaction[0].topic_results[0].results_by_partition
        assert {one.partition_error_code for one in results} == {wanted}


# -- the end reaches every partition


def test_a_transaction_ends_although_one_of_its_topics_is_gone(
    bootstrap: str, connect: Connect, new_topic: NewTopic, producer: RawProducer
) -> None:
    kept, gone = new_topic(), new_topic()
    producer.write(gone, b"x")
    producer.write(kept, b"y")
    with cluster_at(bootstrap) as cluster:
        delete_topics(cluster, [gone])
    producer.commit()
    assert committed_values(connect(), kept) == [b"y"]
    assert producer.describe().transaction_state == "CompleteCommit"


def test_a_transaction_over_many_partitions_ends_in_all(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic(250)
    producer = RawProducer(connect(), version=1).init()
    everywhere = [(topic, index) for index in range(250)]
    assert set(producer.add(*everywhere)) == {ErrorCode.NONE}
    producer.send(topic, b"last", partition=249)
    producer.commit()
    reader = connect()
    eventually(lambda: producer.describe().transaction_state == "CompleteCommit", "it is complete")
    assert all(records_in(reader.fetch(topic, 0, index).records) for index in (0, 100, 248))
    assert committed_values(reader, topic, 249) == [b"last"]


@pytest.mark.parametrize("version", VERSIONS)
def test_transactions_work_where_every_record_is_flushed(version: int) -> None:
    with Broker({"log.flush.interval.messages": 1}) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = make_topic(broker.bootstrap_servers, 2)
        producer = RawProducer(client, version=version).init()
        for number in range(5):
            producer.write(topic, b"%d" % number)
            producer.write(topic, b"%d" % number, partition=1)
            assert producer.end(number % 2 == 0) is ErrorCode.NONE
        eventually(lambda: producer.describe().transaction_state.startswith("Complete"), "the last one is complete")
        assert committed_values(client, topic) == committed_values(client, topic, 1) == [b"0", b"2", b"4"]


def test_requests_in_flight_stay_in_order_while_the_first_waits_to_be_let_in() -> None:
    """For the flush of its transaction's beginning; then for the end of the transaction before, too."""
    with Broker({"log.flush.interval.messages": 1}) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = make_topic(broker.bootstrap_servers)
        producer = RawProducer(client).init()
        for _ in range(10):
            who = (producer.producer_id, producer.epoch)
            requests = [
                produce_request(
                    topic,
                    batch_of(b"%d" % number, producer=(*who, number), is_transactional=True),
                    version=12,
                    transactional_id=producer.transactional_id,
                )
                for number in range(5)
            ]
            for request in requests:
                client.send(request)
            codes = [client.receive(request)[1].responses[0].partition_responses[0].error_code for request in requests]
            assert codes == [0] * 5
            assert producer.end(True) is ErrorCode.NONE
        eventually(lambda: producer.describe().transaction_state == "CompleteCommit", "the last one is complete")
        assert committed_values(client, topic) == [b"%d" % number for number in range(5)] * 10


# -- what operators ask


def test_transactions_and_producers_are_described(connect: Connect, new_topic: NewTopic, producer: RawProducer) -> None:
    topic = new_topic(3)
    producer.write(topic, b"a", b"b", partition=2)
    state = producer.describe()
    assert (state.transaction_state, state.producer_id, state.producer_epoch) == (
        "Ongoing",
        producer.producer_id,
        producer.epoch,
    )
    assert [(one.topic, one.partitions) for one in state.topics] == [(topic, (2,))]
    assert state.transaction_timeout.total_seconds() == 60
    schema = request_schema(ApiKey.DESCRIBE_PRODUCERS, 0)
    answer = producer.client.ask(
        schema.DescribeProducersRequest(topics=(schema.TopicRequest(name=topic, partition_indexes=(2, 9)),))
    )
    known, unknown = answer.topics[0].partitions
    (one,) = known.active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence, one.current_txn_start_offset) == (
        producer.producer_id,
        producer.epoch,
        1,
        0,
    )
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producer.abort()


def test_transactions_are_listed_by_state_producer_age_and_pattern(connect: Connect, new_topic: NewTopic) -> None:
    prefix = f"list-{uuid.uuid4().hex[:8]}"
    idle, busy = (RawProducer(connect(), f"{prefix}-{name}").init() for name in ("idle", "busy"))
    busy.write(new_topic(), b"x")

    def listed(version: int = 2, **filters: object) -> tuple[set[str], tuple[str, ...]]:
        schema = request_schema(ApiKey.LIST_TRANSACTIONS, version)
        wanted = {"state_filters": (), "producer_id_filters": (), **filters}
        answer = idle.client.ask(schema.ListTransactionsRequest(**wanted))
        if answer.error_code:
            return {ErrorCode(answer.error_code).name}, ()
        found = {one.transactional_id for one in answer.transaction_states if one.transactional_id.startswith(prefix)}
        return {one.removeprefix(f"{prefix}-") for one in found}, answer.unknown_state_filters

    assert listed(0) == ({"idle", "busy"}, ())
    assert listed(0, state_filters=("Ongoing", "Nonsense")) == ({"busy"}, ("Nonsense",))
    assert listed(1, producer_id_filters=(idle.producer_id,)) == ({"idle"}, ())
    assert listed(1, duration_filter=600_000, state_filters=("Ongoing",)) == (set(), ())
    assert listed(2, transactional_id_pattern=f"{prefix}-i.*") == ({"idle"}, ())
    assert listed(2, transactional_id_pattern="(a+") == ({"INVALID_REGULAR_EXPRESSION"}, ())
    busy.abort()


def test_a_hanging_transaction_can_be_aborted_from_outside(connect: Connect, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = RawProducer(connect(), version=1)
    producer.init()
    producer.init()
    producer.write(topic, b"hangs")

    def write_marker(index: int, epoch: int, transaction_version: int = 0, coordinator_epoch: int = -1) -> ErrorCode:
        schema = request_schema(ApiKey.WRITE_TXN_MARKERS, 2)
        answer = producer.client.ask(
            schema.WriteTxnMarkersRequest(
                markers=(
                    schema.WritableTxnMarker(
                        producer_id=producer.producer_id,
                        producer_epoch=epoch,
                        transaction_result=False,
                        topics=(schema.WritableTxnMarkerTopic(name=topic, partition_indexes=(index,)),),
                        coordinator_epoch=coordinator_epoch,
                        transaction_version=transaction_version,
                    ),
                )
            )
        )
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    assert write_marker(9, producer.epoch) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert write_marker(0, -1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert write_marker(0, producer.epoch - 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert write_marker(0, producer.epoch, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert last_stable_offset(connect(), topic) == 0
    assert write_marker(0, producer.epoch) is ErrorCode.NONE
    assert last_stable_offset(connect(), topic) == 2
    assert committed_values(connect(), topic) == []

    producer.write(topic, b"goes on")
    assert write_marker(0, producer.epoch, coordinator_epoch=2**31 - 1) is ErrorCode.NONE
    producer.write(topic, b"is not left open by what its coordinator seems to be too old for")
    producer.abort()
    assert last_stable_offset(connect(), topic) == 6
    assert committed_values(connect(), topic) == []

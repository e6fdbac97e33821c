"""A transactional producer that hides nothing: every request by hand, in either version of transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from moldau.errors import RETRIABLE, ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.batch import ControlType, decode_control_record, decode_records, iter_headers
from moldau.wire.messages import ms, request_schema
from tests.integration.raw import RawClient, batch_of, records_in
from tests.integration.waiting import eventually

DEADLINE_S = 20.0
READ_COMMITTED = 1


def persist(ask: Callable[[], ErrorCode]) -> ErrorCode:
    """Asks again while the broker is busy, as clients do; the first other code."""
    deadline = time.monotonic() + DEADLINE_S
    while (code := ask()) in RETRIABLE:
        assert time.monotonic() < deadline, code.name
        time.sleep(0.005)
    return code


class RawProducer:
    """`version` 1 speaks as clients before Kafka 4 do; 2 leaves the adding of partitions to the broker."""

    def __init__(self, client: RawClient, transactional_id: str | None = None, *, version: int = 2) -> None:
        self.client = client
        self.transactional_id = transactional_id or f"txn-{uuid.uuid4().hex[:12]}"
        self.version = version
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    # -- requests, each with its error code

    def find_coordinator(self) -> None:
        schema = request_schema(ApiKey.FIND_COORDINATOR, 4)
        request = schema.FindCoordinatorRequest(key_type=1, coordinator_keys=(self.transactional_id,))
        assert persist(lambda: ErrorCode(self.client.ask(request).coordinators[0].error_code)) is ErrorCode.NONE

    def init_once(
        self, *, timeout_ms: int = 60_000, expected: tuple[int, int] = (-1, -1), version: int = 4
    ) -> ErrorCode:
        schema = request_schema(ApiKey.INIT_PRODUCER_ID, version)
        answer = self.client.ask(
            schema.InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout=ms(timeout_ms),
                producer_id=expected[0],
                producer_epoch=expected[1],
            )
        )
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)

    def init(self, **options: Any) -> RawProducer:
        """As a client does: asks again until the transaction before is over."""
        self.find_coordinator()
        assert persist(lambda: self.init_once(**options)) is ErrorCode.NONE
        return self

    def add(self, *partitions: tuple[str, int], version: int = 3) -> list[ErrorCode]:
        schema = request_schema(ApiKey.ADD_PARTITIONS_TO_TXN, version)
        answer = self.client.ask(
            schema.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=tuple(
                    schema.AddPartitionsToTxnTopic(name=topic, partitions=(index,)) for topic, index in partitions
                ),
            )
        )
        return [
            ErrorCode(one.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    def send(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        produce_version: int | None = None,
        producer: tuple[int, int] | None = None,
        sequence: int | None = None,
    ) -> Any:
        """A Produce as it stands, without anything before it; the answer for its partition."""
        place = (topic, partition)
        first = self.sequences.get(place, 0) if sequence is None else sequence
        who = producer or (self.producer_id, self.epoch)
        answer = self.client.produce(
            topic,
            batch_of(*values, producer=(*who, first), is_transactional=True),
            partition,
            version=produce_version or (12 if self.version >= 2 else 10),
            transactional_id=self.transactional_id,
        )
        if answer.error_code == 0 and producer is None and sequence is None:
            self.sequences[place] = first + len(values)
        return answer

    def write(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """The offset of the first; all as a good client does it."""
        if self.version < 2:
            assert persist(lambda: self.add((topic, partition))[0]) is ErrorCode.NONE
        offset = -1

        def send() -> ErrorCode:
            nonlocal offset
            answer = self.send(topic, *values, partition=partition)
            offset = answer.base_offset
            return ErrorCode(answer.error_code)

        code = persist(send)
        assert code is ErrorCode.NONE, code.name
        return offset

    def end(self, committed: bool, *, version: int | None = None, producer: tuple[int, int] | None = None) -> ErrorCode:
        version = version if version is not None else (5 if self.version >= 2 else 4)
        schema = request_schema(ApiKey.END_TXN, version)
        producer_id, epoch = producer or (self.producer_id, self.epoch)
        answer = self.client.ask(
            schema.EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=committed,
            )
        )
        if version >= 5 and answer.error_code == 0 and answer.producer_id >= 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)

    def commit(self) -> None:
        self._end_and_wait(True)

    def abort(self) -> None:
        self._end_and_wait(False)

    def _end_and_wait(self, committed: bool) -> None:
        assert self.end(committed) is ErrorCode.NONE
        state = "CompleteCommit" if committed else "CompleteAbort"
        eventually(lambda: self.describe().transaction_state == state, "every partition has its marker")

    # -- questions

    def describe(self) -> Any:
        schema = request_schema(ApiKey.DESCRIBE_TRANSACTIONS, 0)
        answer = self.client.ask(schema.DescribeTransactionsRequest(transactional_ids=(self.transactional_id,)))
        return answer.transaction_states[0]


def committed_values(client: RawClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """What a reader of committed records gets: it leaves out the aborted ones, as clients do."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        part = client.fetch(topic, offset, partition, isolation_level=READ_COMMITTED)
        assert part.error_code == 0
        aborted = {(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()}
        batch = visible(part.records, aborted)
        found += [value for _, value in batch]
        following = next_offset(part.records)
        if following is None:
            return found
        offset = following


def visible(data: bytes | None, aborted: set[tuple[int, int]]) -> list[tuple[int, bytes | None]]:
    """Offset and value of the records that are data, and not of an aborted transaction."""
    found = []
    aborting: set[int] = set()
    left = sorted(aborted, key=itemgetter(1))
    for position, header in iter_headers(data or b""):
        records = decode_records(data or b"", position, header)
        while left and left[0][1] <= header.last_offset:
            aborting.add(left.pop(0)[0])
        if header.is_control:
            if decode_control_record(records[0]).type == ControlType.ABORT:
                aborting.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in aborting:
            found += [(record.offset, record.value) for record in records]
    return found


def next_offset(data: bytes | None) -> int | None:
    records = records_in(data)
    return records[-1].offset + 1 if records else None


def last_stable_offset(client: RawClient, topic: str, partition: int = 0) -> int:
    part = client.fetch(topic, 0, partition, isolation_level=READ_COMMITTED)
    return int(part.last_stable_offset)

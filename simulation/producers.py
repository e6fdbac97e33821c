"""Producers and consumers: what they write, what they were promised, what they see."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.batch import ControlType, decode_control_record, decode_records, encode_batch, iter_headers
from moldau.wire.fetch import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request, parse_fetch_response
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition
from simulation.client import AGAIN, BACKOFF_S, REQUEST_TIMEOUT_S, Client, check

if TYPE_CHECKING:
    from typing import Any

    from simulation.run import Run

IN_FLIGHT_MAX = 5
PRODUCE_TIMEOUT_MS = 1_200
POLL_WAIT_MS = 300
FETCH_VERSION = 16
READ_COMMITTED = 1


class Writer(Client):
    """What producers of every kind have in common."""

    async def produce(
        self, place: TopicPartition, value: bytes, producer: tuple[int, int, int], transactional_id: str | None = None
    ) -> int:
        """The offset that the record got."""
        address, leader = await self.leader(place)
        batch = encode_batch(
            [(None, value, self.host.wall_clock_ms(), ())],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            is_transactional=transactional_id is not None,
        )

        def build(schema: Schema) -> Any:
            data = schema.PartitionProduceData(index=place[1], records=batch)
            topic = schema.TopicProduceData(name=place[0], topic_id=leader.topic_id, partition_data=(data,))
            return schema.ProduceRequest(
                transactional_id=transactional_id, acks=-1, timeout=ms(PRODUCE_TIMEOUT_MS), topic_data=(topic,)
            )

        answer = await self.ask(address, ApiKey.PRODUCE, build)
        result = answer.responses[0].partition_responses[0]
        check(result.error_code)
        return int(result.base_offset)

    async def init_producer(self, transactional_id: str | None = None, timeout_ms: int = 60_000) -> tuple[int, int]:
        def build(schema: Schema) -> Any:
            return schema.InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout=ms(timeout_ms),
                producer_id=-1,
                producer_epoch=-1,
                enable2_pc=False,
                keep_prepared_txn=False,
            )

        async def attempt() -> tuple[int, int]:
            if transactional_id is None:
                answer = await self.ask_any(ApiKey.INIT_PRODUCER_ID, build)
            else:
                answer = await self.ask_coordinator(1, transactional_id, ApiKey.INIT_PRODUCER_ID, build)
            check(answer.error_code)
            return answer.producer_id, answer.producer_epoch

        return await self.persist(attempt)


class Producer(Writer):
    """Idempotent, acks=all, several requests in flight; after a failure one at a time until all are acknowledged."""

    def __init__(self, run: Run, name: str, place: TopicPartition, total: int, *, idempotent: bool = True) -> None:
        super().__init__(run, name)
        self._place = place
        self._total = total
        self._is_idempotent = idempotent

    async def work(self) -> None:
        producer = (-1, -1)
        if self._is_idempotent:
            producer = await self.init_producer()
            self.run.checker.id_given(producer[0])
        await self.refresh()
        first, pipelined = 0, False
        while first < self._total:
            count = min(self._total - first, self.world.between_us(1, IN_FLIGHT_MAX) if pipelined else 1)
            tasks = [asyncio.ensure_future(self._send(producer, first + index)) for index in range(count)]
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            acknowledged = 0
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    break
                acknowledged += 1
            first += acknowledged
            # A log that does not know the producer takes any first sequence: the first one goes alone.
            pipelined = acknowledged == count
            if not pipelined:
                error = outcomes[acknowledged]
                if not isinstance(error, KafkaError):
                    raise AssertionError(f"{self.name}: {error!r}") from error
                if error.code not in AGAIN and error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise AssertionError(f"{self.name}: record {first} is refused: {error.code.name}")
                await self._catch_up(producer, first, count - acknowledged)
                first += count - acknowledged
            await asyncio.sleep(self.world.between_us(1_000, 400_000) / 1e6)

    async def _catch_up(self, producer: tuple[int, int], first: int, count: int) -> None:
        """The records whose outcome is in doubt, one at a time, until each is acknowledged."""
        for number in range(first, first + count):
            while True:
                await self.refresh()
                try:
                    await self._send(producer, number)
                    break
                except KafkaError as error:
                    if error.code not in AGAIN:
                        raise AssertionError(
                            f"{self.name}: record {number} is refused again: {error.code.name}"
                        ) from error
                await asyncio.sleep(BACKOFF_S)

    async def _send(self, producer: tuple[int, int], number: int) -> None:
        value = f"n {self.name} {number}" if self._is_idempotent else f"u {self.name} {number}"
        sequence = number if self._is_idempotent else -1
        offset = await self.produce(self._place, value.encode(), (*producer, sequence))
        self.note("{}: record {} is acknowledged at {}", self._place, number, offset)
        if offset >= 0:  # -1: a repetition of a record that is no longer among the last ones the log knows
            self.run.checker.acknowledged(self._place, offset, value.encode())


class Consumer(Client):
    """Reads committed transactions of one partition, to the end of what there is."""

    def __init__(self, run: Run, name: str, place: TopicPartition) -> None:
        super().__init__(run, name)
        self.place = place
        self.position = 0

    async def work(self) -> None:
        await self.refresh()
        while not self.run.is_over:
            try:
                await self._poll()
            except KafkaError as error:
                if error.code not in AGAIN and error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.run.checker.out_of_range(self.place, self.position)
                await self.refresh()
                await asyncio.sleep(BACKOFF_S)

    async def _poll(self) -> None:
        address, leader = await self.leader(self.place)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=POLL_WAIT_MS,
            min_bytes=1,
            isolation_level=READ_COMMITTED,
            topics=[
                FetchTopic(
                    None,
                    leader.topic_id.bytes,
                    [FetchPartition(self.place[1], leader.epoch, self.position, max_bytes=1 << 16)],
                )
            ],
        )
        peer = self.peer(address)
        body = encode_fetch_request(FETCH_VERSION, request)
        frame = await peer.ask_raw(ApiKey.FETCH, FETCH_VERSION, [body], timeout_s=REQUEST_TIMEOUT_S)
        response = parse_fetch_response(FETCH_VERSION, frame)
        ((_, _, (result,)),) = response.topics
        check(result.error_code)
        records = result.records or b""
        assert isinstance(records, bytes | memoryview)
        self._read(bytes(records), result.aborted or ())

    def _read(self, data: bytes, aborted: Any) -> None:
        left = sorted((first, producer_id) for producer_id, first in aborted)
        aborting: set[int] = set()
        for position, header in iter_headers(data):
            if header.base_offset > self.position:
                self.run.checker.gap(self.place, self.position, header.base_offset)
            while left and left[0][0] <= header.last_offset:
                aborting.add(left.pop(0)[1])
            records = decode_records(data, position, header)
            if header.is_control:
                if decode_control_record(records[0]).type == ControlType.ABORT:
                    aborting.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborting:
                for record in records:
                    if record.offset >= self.position:
                        self.run.checker.shown(self.place, record.offset, record.value or b"")
            self.position = max(self.position, header.next_offset)

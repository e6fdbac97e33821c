"""Clients of the coordinators: transactions over several partitions with offsets in them, and plain commits of offsets.

`History` holds what they were told, and what readers were shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema
from moldau.wire.topic_partition import TopicPartition
from simulation.client import AGAIN, BACKOFF_S, GROUP, TRANSACTION, Client, check
from simulation.producers import Writer

if TYPE_CHECKING:
    from simulation.run import Run

TRANSACTION_TIMEOUT_MS = 2_500


class Outcome(Enum):
    OPEN = "open"
    ASKED = "asked to commit"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    def __init__(self, name: str, number: int, places: Sequence[TopicPartition], *, has_offset: bool) -> None:
        self.name = name
        self.number = number
        self.places = places
        self.has_offset = has_offset
        self.outcome = Outcome.OPEN

    def value(self, index: int) -> bytes:
        return f"t {self.name} {self.number} {index}".encode()


class History:
    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self._shown: dict[tuple[str, int], set[int]] = {}
        self._at: dict[TopicPartition, int] = {}

    def shown(self, place: TopicPartition, offset: int, name: str, number: int, index: int) -> None:
        """To a reader of committed transactions, in order of offsets."""
        if offset < self._at.get(place, 0):
            return
        self._at[place] = offset + 1
        transaction = self.transactions[name, number]
        if transaction.outcome in (Outcome.OPEN, Outcome.ABORTED):
            state = transaction.outcome.value
            self._fail(f"{place}: a reader sees record {index} of transaction {name} {number}, which is {state}")
        shown = self._shown.setdefault((name, number), set())
        if index in shown:
            self._fail(f"{place}: a reader sees record {index} of transaction {name} {number} twice")
        shown.add(index)

    def check_at_end(self) -> None:
        for key, transaction in self.transactions.items():
            count, total = len(self._shown.get(key, ())), len(transaction.places)
            allowed = {
                Outcome.COMMITTED: (total,),
                Outcome.ASKED: (0, total),
                Outcome.ABORTED: (0,),
                Outcome.OPEN: (0,),
            }[transaction.outcome]
            if count not in allowed:
                self._fail(f"transaction {key} is {transaction.outcome.value}, readers see {count} of {total} records")


class Transactor(Writer):
    """One transactional id. Now and then its process dies, and what it had sent may still arrive."""

    def __init__(self, run: Run, name: str, places: Sequence[TopicPartition], total: int) -> None:
        super().__init__(run, name)
        self._places = places
        self._total = total
        self._number = 0
        self._offset = 0
        """Committed last, as far as it was told."""

    async def work(self) -> None:
        random, history = self.world.random, self.run.checker.history
        producer = await self._begin()
        while self._number < self._total:
            self._number += 1
            places = [random.choice(self._places) for _ in range(random.randint(1, 4))]
            transaction = Transaction(self.name, self._number, places, has_offset=self.world.chance(0.5))
            history.transactions[self.name, self._number] = transaction
            if self.world.chance(0.2):
                self.world.after(self.world.between_us(0, 40_000), self._crash, self.host.loop)
            if not await self._write(transaction, producer):
                producer = await self._end(transaction, producer, committed=False)
            else:
                producer = await self._end(transaction, producer, committed=self.world.chance(0.75))
            await asyncio.sleep(self.world.between_us(1_000, 500_000) / 1e6)
        await self._check_offset()

    async def _begin(self) -> tuple[int, int]:
        await self.refresh()
        return await self.init_producer(self.name, TRANSACTION_TIMEOUT_MS)

    def _crash(self, loop: object) -> None:
        if self.host.loop is loop and not self.is_done:
            self.note("dies")
            self.host.kill()
            self.world.after(self.world.between_us(0, 300_000), self.start)

    async def _write(self, transaction: Transaction, producer: tuple[int, int]) -> bool:
        """Whether everything was taken."""
        try:
            for index, place in enumerate(transaction.places):
                sequence = transaction.places[:index].count(place)
                await self._produce(transaction, index, place, (*producer, sequence))
            if transaction.has_offset:
                await self.persist(lambda: self._send_offset(transaction, producer))
        except KafkaError as error:
            self.note("transaction {} fails: {}", transaction.number, error.code.name)
            return False
        return True

    async def _produce(
        self, transaction: Transaction, index: int, place: TopicPartition, producer: tuple[int, int, int]
    ) -> None:
        offset = await self.persist(lambda: self.produce(place, transaction.value(index), producer, self.name))
        if offset >= 0:
            self.run.checker.acknowledged(place, offset, transaction.value(index))

    async def _send_offset(self, transaction: Transaction, producer: tuple[int, int]) -> None:
        def build(schema: Schema) -> Any:
            partition = schema.TxnOffsetCommitRequestPartition(
                partition_index=0,
                committed_offset=transaction.number,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
            return schema.TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=self.name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=(schema.TxnOffsetCommitRequestTopic(name=self._places[0][0], partitions=(partition,)),),
            )

        answer = await self.ask_coordinator(GROUP, self.name, ApiKey.TXN_OFFSET_COMMIT, build)
        check(answer.topics[0].partitions[0].error_code)

    async def _end(self, transaction: Transaction, producer: tuple[int, int], *, committed: bool) -> tuple[int, int]:
        """The identity for the next transaction."""
        if committed:
            transaction.outcome = Outcome.ASKED
        is_again = False
        while True:
            try:
                identity = await self._end_once(producer, committed)
                break
            except KafkaError as error:
                if error.code not in AGAIN:
                    self.note("end of transaction {} fails: {}", transaction.number, error.code.name)
                    if not committed or not is_again:
                        transaction.outcome = Outcome.ABORTED
                    return await self._begin()
            is_again = True
            await self.refresh()
            await asyncio.sleep(BACKOFF_S)
        transaction.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
        self.note("transaction {} is {}", transaction.number, transaction.outcome.value)
        if committed and transaction.has_offset:
            self._offset = transaction.number
        return identity

    async def _end_once(self, producer: tuple[int, int], committed: bool) -> tuple[int, int]:
        def build(schema: Schema) -> Any:
            return schema.EndTxnRequest(
                transactional_id=self.name, producer_id=producer[0], producer_epoch=producer[1], committed=committed
            )

        answer = await self.ask_coordinator(TRANSACTION, self.name, ApiKey.END_TXN, build)
        check(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    async def _check_offset(self) -> None:
        """At the end: what the group has is what the last transaction with an offset committed."""
        found = await self.persist(lambda: fetch_offset(self, self.name, self._places[0][0], require_stable=True))
        known = self.run.checker.history.transactions.get((self.name, found))
        is_wrong = known is not None and known.outcome not in (Outcome.COMMITTED, Outcome.ASKED)
        if max(found, 0) < self._offset or is_wrong:
            self.run.checker.fail(f"group {self.name} is at {found}, transaction {self._offset} is committed")


class Committer(Client):
    """A group that commits ever higher offsets, and asks for them."""

    def __init__(self, run: Run, name: str, topic: str, total: int) -> None:
        super().__init__(run, name)
        self._topic = topic
        self._total = total

    async def work(self) -> None:
        late: int | None = None
        """The lowest offset whose commit got no answer: it may still arrive, and count."""
        offset = 0
        await self.refresh()
        while offset < self._total:
            try:
                await self._commit(offset + 1)
            except KafkaError as error:
                if error.code not in AGAIN:
                    raise
                late = offset + 1 if late is None else late
                await self.refresh()
                await asyncio.sleep(BACKOFF_S)
                continue
            offset += 1
            try:
                found = await fetch_offset(self, self.name, self._topic)
            except KafkaError:
                await self.refresh()
            else:
                lowest = offset if late is None else late
                if not lowest <= found <= offset:
                    self.run.checker.fail(f"group {self.name}: {offset} was committed, {found} is fetched")
            await asyncio.sleep(self.world.between_us(5_000, 400_000) / 1e6)

    async def _commit(self, offset: int) -> None:
        def build(schema: Schema) -> Any:
            partition = schema.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
            )
            topic = schema.OffsetCommitRequestTopic(
                name=self._topic, topic_id=self.topic_id(self._topic), partitions=(partition,)
            )
            return schema.OffsetCommitRequest(
                group_id=self.name,
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                topics=(topic,),
            )

        answer = await self.ask_coordinator(GROUP, self.name, ApiKey.OFFSET_COMMIT, build)
        check(answer.topics[0].partitions[0].error_code)


async def fetch_offset(client: Client, group: str, topic: str, *, require_stable: bool = False) -> int:
    def build(schema: Schema) -> Any:
        wanted = schema.OffsetFetchRequestTopics(name=topic, topic_id=client.topic_id(topic), partition_indexes=(0,))
        asked = schema.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=(wanted,))
        return schema.OffsetFetchRequest(groups=(asked,), require_stable=require_stable)

    answer = await client.ask_coordinator(GROUP, group, ApiKey.OFFSET_FETCH, build)
    (found,) = answer.groups
    check(found.error_code)
    (partition,) = found.topics[0].partitions
    if ErrorCode(int(partition.error_code)) is ErrorCode.UNSTABLE_OFFSET_COMMIT:
        raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, "a transaction is open")
    check(partition.error_code)
    return int(partition.committed_offset)

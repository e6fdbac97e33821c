"""Clients of the coordinators: transactions over several partitions with offsets in them, and plain commits of offsets.

`History` holds what they were told, and what readers were shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from moldau.coordinators.offsets.commits import Asked, Commit, Fetch, Fetched, Offset
from moldau.coordinators.transactions.shard import EndTxn, Initialized, InitProducerId
from moldau.coordinators.transactions.transaction import EPOCH_BUMP_SINCE, Identity
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.constants import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from simulation.clients import BACKOFF_US, Client
from simulation.log import Batch, Entry, TopicPartition
from simulation.services import Produce

if TYPE_CHECKING:
    from simulation.checker import Checker
    from simulation.cluster import Cluster

TRANSACTION_TIMEOUT_MS = 2_500
_GROUPS, _TRANSACTIONS = (GROUPS_TOPIC, 0), (TRANSACTIONS_TOPIC, 0)
_RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)


def _is_final(answer: Any) -> bool:
    return isinstance(answer, KafkaError) and answer.code not in _RETRIABLE


class Outcome(Enum):
    OPEN = "open"
    ASKED = "a commit was asked for"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    def __init__(self, name: str, number: int, records: Sequence[TopicPartition], *, has_offset: bool) -> None:
        self.name = name
        self.number = number
        self.records = records
        self.has_offset = has_offset
        self.outcome = Outcome.OPEN

    def payload(self, index: int) -> tuple[str, str, int, int]:
        return ("t", self.name, self.number, index)


class History:
    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.transactions: dict[tuple[str, int], Transaction] = {}
        self._shown: dict[tuple[str, int], set[int]] = {}
        self._at: dict[TopicPartition, int] = {}

    def shown(self, where: TopicPartition, entry: Entry) -> None:
        """To a reader of committed transactions, in order of offsets."""
        offset, payload = entry.header.base_offset, entry.payload
        if offset < self._at.get(where, 0) or payload[0] != "t":
            return
        self._at[where] = offset + 1
        _, name, number, index = payload
        if self.transactions[name, number].outcome in (Outcome.OPEN, Outcome.ABORTED):
            self._checker.fail(
                f"{where}: {entry} is shown, its transaction is {self.transactions[name, number].outcome}"
            )
        shown = self._shown.setdefault((name, number), set())
        if index in shown:
            self._checker.fail(f"{where}: {entry} is shown twice")
        shown.add(index)

    def check_at_end(self) -> None:
        for key, transaction in self.transactions.items():
            count, total = len(self._shown.get(key, ())), len(transaction.records)
            allowed = {
                Outcome.COMMITTED: (total,),
                Outcome.ASKED: (0, total),
                Outcome.ABORTED: (0,),
                Outcome.OPEN: (0,),
            }[transaction.outcome]
            if count not in allowed:
                self._checker.fail(f"transaction {key} is {transaction.outcome}, {count} of {total} records are shown")


class Transactor(Client):
    """One transactional id. Now and then it dies, and what it had sent may still arrive."""

    def __init__(self, cluster: Cluster, name: str, places: Sequence[TopicPartition], total: int) -> None:
        super().__init__(cluster, name)
        self._places = places
        self._total = total
        self._number = 0
        self._identity = Identity(-1, -1)
        self._is_idle = False
        self._offset = 0
        """Committed last, as far as it was told."""

    @property
    def is_done(self) -> bool:
        return self._is_idle

    def start(self) -> None:
        self.is_running = True
        self.refresh()
        request = InitProducerId(self.name, TRANSACTION_TIMEOUT_MS)

        def told(answer: Any) -> None:
            if isinstance(answer, Initialized) and answer.error is ErrorCode.NONE:
                self._identity = answer.producer
                self._begin()
            else:
                self.after(BACKOFF_US, self.start)

        self.ask_leader(_TRANSACTIONS, "init_producer_id", request, told)

    def _begin(self) -> None:
        if self._number == self._total:
            self._check_offset()
            return
        self._number += 1
        random = self.world.random
        records = [random.choice(self._places) for _ in range(random.randint(1, 4))]
        transaction = Transaction(self.name, self._number, records, has_offset=self.world.chance(0.5))
        self.cluster.history.transactions[self.name, self._number] = transaction
        if self.world.chance(0.2):
            self.after(self.world.between_ms(0, 40), self._crash, self.life)
        self._produce(transaction, 0)

    def _crash(self, life: int) -> None:
        if life == self.life:
            self.world.note("{} dies", self.name)
            self.die()
            self.cluster.network.process_died(self)
            self.after(self.world.between_ms(0, 300), self.start)

    def _produce(self, transaction: Transaction, index: int) -> None:
        if index == len(transaction.records):
            if transaction.has_offset:
                self._send_offset(transaction)
            else:
                self._end(transaction, committed=self.world.chance(0.75))
            return
        where = transaction.records[index]
        sequence = transaction.records[:index].count(where)
        batch = Batch(transaction.payload(index), *self._identity, sequence, True)

        def told(answer: Any) -> None:
            if isinstance(answer, int):
                self._produce(transaction, index + 1)
            elif _is_final(answer):
                self.world.note("{}: {} fails with {}", self.name, batch.payload, answer.code.name)
                self._end(transaction, committed=False)
            else:
                self.refresh()
                self.after(BACKOFF_US, self._produce, transaction, index)

        self.ask_leader(where, "produce", Produce(where, batch, self.name), told)

    def _send_offset(self, transaction: Transaction) -> None:
        offset = Offset(self._places[0][0], 0, transaction.number)
        asked = Commit(self.name, "", None, -1, [offset], producer=tuple(self._identity))  # type: ignore[arg-type]

        def told(answer: Any) -> None:
            if answer == [ErrorCode.NONE]:
                self._end(transaction, committed=self.world.chance(0.75))
            elif _is_final(answer):
                self._end(transaction, committed=False)
            else:
                self.refresh()
                self.after(BACKOFF_US, self._send_offset, transaction)

        self.ask_leader(_GROUPS, "txn_offset_commit", (self.name, asked), told)

    def _end(self, transaction: Transaction, *, committed: bool, is_again: bool = False) -> None:
        if committed:
            transaction.outcome = Outcome.ASKED
        request = EndTxn(self.name, self._identity, committed, EPOCH_BUMP_SINCE)

        def told(answer: Any) -> None:
            if isinstance(answer, Identity):
                self._ended(transaction, committed, answer)
            elif _is_final(answer):
                self.world.note("{}: end of {} fails with {}", self.name, transaction.number, answer.code.name)
                if not committed or not is_again:
                    transaction.outcome = Outcome.ABORTED
                self.start()
            else:
                self.refresh()
                self.after(BACKOFF_US, self._end_again, transaction, committed)

        self.ask_leader(_TRANSACTIONS, "end_txn", request, told)

    def _end_again(self, transaction: Transaction, committed: bool) -> None:
        self._end(transaction, committed=committed, is_again=True)

    def _ended(self, transaction: Transaction, committed: bool, identity: Identity) -> None:
        transaction.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
        if committed and transaction.has_offset:
            self._offset = transaction.number
        self._identity = identity
        self.after(self.world.between_ms(1, 120), self._begin)

    def _check_offset(self) -> None:
        """At the end: what the group has is what the last transaction with an offset committed."""
        asked = Fetch(self.name, [Asked(self._places[0][0], 0)], require_stable=True)

        def told(answer: Any) -> None:
            if not isinstance(answer, list) or answer[0].error:
                self.refresh()
                self.after(BACKOFF_US, self._check_offset)
                return
            found = max(answer[0].offset, 0)
            known = self.cluster.history.transactions.get((self.name, found))
            if found < self._offset or (known is not None and known.outcome not in (Outcome.COMMITTED, Outcome.ASKED)):
                self.cluster.checker.fail(f"group {self.name} is at {found}, transaction {self._offset} is committed")
            self._is_idle = True

        self.ask_leader(_GROUPS, "offset_fetch", asked, told)


class Committer(Client):
    """A group that commits ever higher offsets, and asks for them."""

    def __init__(self, cluster: Cluster, name: str, topic: str, total: int) -> None:
        super().__init__(cluster, name)
        self._topic = topic
        self._total = total
        self._offset = 0
        self._late: int | None = None
        """The lowest offset whose commit got no answer: it may still arrive, and count."""

    @property
    def is_done(self) -> bool:
        return self._offset == self._total

    def start(self) -> None:
        self.refresh()
        self._commit()

    def _commit(self) -> None:
        if self.is_done:
            return
        offset = self._offset + 1
        asked = Commit(self.name, "", None, -1, [Offset(self._topic, 0, offset)])

        def told(answer: Any) -> None:
            if answer == [ErrorCode.NONE]:
                self._offset = offset
                self._fetch()
            else:
                self._late = offset if self._late is None else self._late
                self.refresh()
                self.after(BACKOFF_US, self._commit)

        self.ask_leader(_GROUPS, "offset_commit", asked, told)

    def _fetch(self) -> None:
        def told(answer: list[Fetched] | Any) -> None:
            # What it was told is what there is, also after any change of coordinator.
            lowest = self._offset if self._late is None else self._late
            if isinstance(answer, list) and not lowest <= answer[0].offset <= self._offset:
                self.cluster.checker.fail(f"group {self.name}: {self._offset} was committed, {answer[0]} is fetched")
            if not isinstance(answer, list):
                self.refresh()
            self.after(self.world.between_ms(5, 100), self._commit)

        self.ask_leader(_GROUPS, "offset_fetch", Fetch(self.name, [Asked(self._topic, 0)]), told)

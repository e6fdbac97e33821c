"""What clients of a log were told, and whether one log can have told them all that.

Every write has a value of its own, so a history needs no model of the log, only these questions:

    lost          acknowledged, and not in the log at the end, or read once and then gone
    duplicated    one value at two offsets
    disagreement  one offset with two values, among all reads and acknowledgements
    reordered     a producer's later value before its earlier one, within a partition
    aborted       a value of an aborted transaction, or of a refused write, was read as committed
    torn          of a transaction's values some are committed, others are not
    stale         the end of the log, asked for after a write was acknowledged, lies before that write
    backwards     a consumer that did not seek got an offset again, or an older one
    skipped       a consumer that did not seek was not given a record between two that it got

What a client was not told the end of (`Outcome.UNKNOWN`) may have happened or not. Times are of one clock.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise


class Outcome(enum.Enum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """`number` rises with each write of a producer. Part of `transaction` if that is not None."""

    producer: str
    number: int
    partition: int
    value: str
    invoked_s: float
    transaction: Transaction | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    completed_s: float = float("inf")


@dataclass(slots=True, eq=False)
class Transaction:
    """OK is committed, FAIL is aborted."""

    name: str
    outcome: Outcome = Outcome.UNKNOWN
    writes: list[Write] = field(default_factory=list)


@dataclass(slots=True)
class Read:
    """Records that a consumer got of one partition, in order. A new `run` begins with each seek."""

    consumer: str
    run: int
    partition: int
    committed: bool
    records: list[tuple[int, str]]


@dataclass(slots=True)
class End:
    """The end of a partition, as a reader of uncommitted records was told."""

    partition: int
    invoked_s: float
    offset: int


@dataclass
class History:
    """`final` are reads of whole partitions after everything has come to rest, one of each isolation level."""

    writes: list[Write] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return len(self.writes) + len(self.transactions) + len(self.reads) + len(self.ends)

    def outcomes(self) -> Counter[str]:
        return Counter(write.outcome.value for write in self.writes)


@dataclass(frozen=True)
class Anomaly:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def check(history: History) -> list[Anomaly]:
    return list(_Checker(history).all())


class _Checker:
    def __init__(self, history: History) -> None:
        self._history = history
        self._write = {write.value: write for write in history.writes}
        self._log = _merged(history.final, committed=False)
        self._committed = _merged(history.final, committed=True)

    def all(self) -> Iterator[Anomaly]:
        yield from self._disagreements()
        yield from self._lost()
        yield from self._duplicated()
        yield from self._reordered()
        yield from self._aborted()
        yield from self._torn()
        yield from self._stale()
        yield from self._consumers()

    def _disagreements(self) -> Iterator[Anomaly]:
        told: dict[tuple[int, int], set[str]] = defaultdict(set)
        for read in (*self._history.reads, *self._history.final):
            for offset, value in read.records:
                told[read.partition, offset].add(value)
        for write in self._history.writes:
            if write.offset is not None:
                told[write.partition, write.offset].add(write.value)
        for (partition, offset), values in told.items():
            if len(values) > 1:
                yield Anomaly("disagreement", f"{partition}@{offset} is {', '.join(sorted(values))}")

    def _lost(self) -> Iterator[Anomaly]:
        there = {value for log in self._log.values() for value in log.values()}
        for write in self._history.writes:
            if write.outcome is Outcome.OK and write.value not in there:
                log = self._log.get(write.partition, {})
                passed = write.offset is not None and any(offset > write.offset for offset in log)
                where = "later ones are there" if passed else "the log ends before it"
                yield Anomaly("lost", f"{write.value}, acknowledged at {write.partition}@{write.offset}; {where}")
        gone = {value for read in self._history.reads for _, value in read.records} - there
        for value in sorted(gone):
            if self._write[value].outcome is not Outcome.OK:
                yield Anomaly("lost", f"{value} was read, and is not in the log at the end")

    def _duplicated(self) -> Iterator[Anomaly]:
        for log in (self._log, self._committed):
            places: dict[str, list[str]] = defaultdict(list)
            for partition, records in log.items():
                for offset, value in records.items():
                    places[value].append(f"{partition}@{offset}")
            for value, found in places.items():
                if len(found) > 1:
                    yield Anomaly("duplicated", f"{value} at {', '.join(found)}")

    def _reordered(self) -> Iterator[Anomaly]:
        for partition, records in self._log.items():
            last: dict[str, Write] = {}
            for offset, value in sorted(records.items()):
                write = self._write[value]
                before = last.get(write.producer)
                if before is not None and before.number > write.number:
                    yield Anomaly("reordered", f"{value} at {partition}@{offset}, after {before.value}")
                last[write.producer] = write

    def _aborted(self) -> Iterator[Anomaly]:
        for read in (*self._history.reads, *self._history.final):
            for offset, value in read.records:
                write = self._write[value]
                place = f"{value} at {read.partition}@{offset}, to {read.consumer}"
                transaction = write.transaction
                if transaction is None:
                    if write.outcome is Outcome.FAIL:
                        yield Anomaly("aborted", f"{place}; its write was refused")
                elif read.committed and transaction.outcome is Outcome.FAIL:
                    yield Anomaly("aborted", f"{place}; {transaction.name} was aborted")

    def _torn(self) -> Iterator[Anomaly]:
        visible = {value for log in self._committed.values() for value in log.values()}
        for transaction in self._history.transactions:
            seen = sum(write.value in visible for write in transaction.writes)
            whole = len(transaction.writes)
            if 0 < seen < whole or (transaction.outcome is Outcome.OK and seen < whole):
                yield Anomaly("torn", f"{transaction.name} ({transaction.outcome.value}): {seen} of {whole} are there")

    def _stale(self) -> Iterator[Anomaly]:
        acked: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for write in sorted(self._history.writes, key=lambda write: write.completed_s):
            if write.outcome is Outcome.OK and write.offset is not None:
                so_far = acked[write.partition]
                highest = max(so_far[-1][1] if so_far else 0, write.offset + 1)
                so_far.append((write.completed_s, highest))
        for end in self._history.ends:
            so_far = acked[end.partition]
            index = bisect.bisect_left(so_far, (end.invoked_s, -1))
            if index and so_far[index - 1][1] > end.offset:
                yield Anomaly(
                    "stale", f"{end.partition} ends at {end.offset}, but {so_far[index - 1][1] - 1} was acknowledged"
                )

    def _consumers(self) -> Iterator[Anomaly]:
        sorted_logs = {
            True: {partition: sorted(log) for partition, log in self._committed.items()},
            False: {partition: sorted(log) for partition, log in self._log.items()},
        }
        runs: dict[tuple[str, int, int, bool], list[int]] = defaultdict(list)
        for read in self._history.reads:
            runs[read.consumer, read.run, read.partition, read.committed] += [offset for offset, _ in read.records]
        for (consumer, _, partition, committed), offsets in runs.items():
            log = sorted_logs[committed].get(partition, [])
            for before, after in pairwise(offsets):
                if after <= before:
                    yield Anomaly("backwards", f"{consumer} got {partition}@{after} after @{before}")
                elif missed := log[bisect.bisect_right(log, before) : bisect.bisect_left(log, after)]:
                    yield Anomaly("skipped", f"{consumer} got {partition}@{after} after @{before}, without {missed}")


def _merged(reads: Iterable[Read], *, committed: bool) -> dict[int, dict[int, str]]:
    logs: dict[int, dict[int, str]] = defaultdict(dict)
    for read in reads:
        if read.committed == committed:
            logs[read.partition].update(read.records)
    return dict(logs)

"""A share partition: one partition of a topic as a queue for one group, and what became of each record in it.

Every offset from the start offset up to (not including) the end offset is in flight, in one of four states:

    state         event                                    next state     delivery count
    AVAILABLE     acquired by a member                     ACQUIRED       + 1
    ACQUIRED      accepted                                 ACKNOWLEDGED
    ACQUIRED      rejected, or found to be a gap           ARCHIVED
    ACQUIRED      released, or its lock ran out            AVAILABLE      at the limit: ARCHIVED
    ACQUIRED      its member's session ended               AVAILABLE      - 1: perhaps it was never seen
    ACQUIRED      renewed                                  ACQUIRED       (a new lock)
    any but these the log holds no record to deliver       ARCHIVED
    any           the log start offset passes it           gone

ACKNOWLEDGED and ARCHIVED are final. Offsets below the start offset are all final or gone, those from the end offset on
were never delivered. The start offset moves over whatever is final and never goes back, unless the log itself does.

Offsets are kept as runs: neighbours of the same state, delivery count, owner and lock are one entry. The runs cover
all of [start offset, end offset) without overlap, so the common case, whole batches that come and go together, costs a
few entries, and a single record that is treated apart costs two more.

Acquiring is not durable, as in Kafka: after a restart an acquired record is available, with the delivery count it had
when it was last let go. Letting go is: such a step returns what has to be written (`StateWrite`), and what was written
is what `SharePartition.restore` takes. An offset that was never written is available and was never delivered.

A record that comes back again and again may be what kills its consumers. From half the delivery limit on, its run is
delivered apart from others and in ever smaller pieces, at the last attempt alone, so that one bad record does not take
its neighbours with it into the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from moldau.coordinators.share.runs import cut, find, put
from moldau.errors import ErrorCode, KafkaError


class RecordState(IntEnum):
    """Numbered as in the records of `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class AckType(IntEnum):
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = RecordState
_FINAL = frozenset((ACKNOWLEDGED, ARCHIVED))
_STATE_AFTER = {
    AckType.GAP: ARCHIVED,
    AckType.ACCEPT: ACKNOWLEDGED,
    AckType.RELEASE: AVAILABLE,
    AckType.REJECT: ARCHIVED,
}
_ACK_TYPES = tuple(AckType)
_THROTTLE_MIN = 2
"""Deliveries after which a run may be cut into smaller pieces, at the least."""


class Span(NamedTuple):
    """Offsets from the first to the last, both included."""

    first: int
    last: int


class Acquired(NamedTuple):
    first: int
    last: int
    delivery_count: int


class StateBatch(NamedTuple):
    """A run as it is written."""

    first: int
    last: int
    state: int
    delivery_count: int


class StateWrite(NamedTuple):
    """What to make durable: where the queue begins now, and the runs that changed."""

    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class Ack(NamedTuple):
    """What a member says of some records: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class ShareLimits(NamedTuple):
    """What the group is configured to."""

    delivery_count: int
    record_locks: int
    lock_duration_ms: int


class Wanted(NamedTuple):
    """How much a fetch asks for. Batches are acquired whole, unless the number of records is `exact`."""

    max_records: int
    batch_size: int
    exact: bool = False


class Run(NamedTuple):
    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    member: str = ""
    lock_until_ms: int = 0


class SharePartition:
    __slots__ = ("_runs", "end_offset", "limits", "start_offset")

    def __init__(self, start_offset: int, limits: ShareLimits) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.limits = limits
        self._runs: list[Run] = []

    @classmethod
    def restore(cls, start_offset: int, batches: Iterable[StateBatch], limits: ShareLimits) -> SharePartition:
        partition = cls(start_offset, limits)
        for batch in batches:
            if batch.last < partition.end_offset:
                continue
            first = max(batch.first, partition.end_offset)
            partition._extend(first)
            put(partition._runs, [Run(first, batch.last, RecordState(batch.state), batch.delivery_count)])
            partition.end_offset = batch.last + 1
        partition.configure(limits)
        return partition

    def configure(self, limits: ShareLimits) -> None:
        """The group's configuration; a lower delivery limit ends the attempts with what has reached it."""
        self.limits = limits
        spent = [run for run in self._runs if run.state is AVAILABLE and run.delivery_count >= limits.delivery_count]
        put(self._runs, [run._replace(state=ARCHIVED) for run in spent])
        self._advance()

    # -- what it is like

    @property
    def runs(self) -> Sequence[Run]:
        return self._runs

    @property
    def next_fetch_offset(self) -> int:
        """Where to read the log for records to deliver."""
        return next((run.first for run in self._runs if run.state is AVAILABLE), self.end_offset)

    @property
    def has_room(self) -> bool:
        """Something could be acquired, if the log has it."""
        return self.next_fetch_offset < self.end_offset or self._may_extend

    @property
    def next_lock_ms(self) -> int | None:
        """When the first lock runs out."""
        return min((run.lock_until_ms for run in self._runs if run.state is ACQUIRED), default=None)

    @property
    def delivery_complete_count(self) -> int:
        return sum(run.last - run.first + 1 for run in self._runs if run.state in _FINAL)

    @property
    def _may_extend(self) -> bool:
        return self.end_offset - self.start_offset < self.limits.record_locks

    # -- acquiring

    def acquire(self, member: str, found: Sequence[Span], upto: int, wanted: Wanted, now_ms: int) -> list[Acquired]:
        """Gives `member` available records out of what a read of the log from the next fetch offset `found`.

        What lies between the found spans, and behind them up to (not including) `upto`, holds nothing to deliver:
        control records, records of aborted transactions, records that were compacted away.
        """
        taken: list[Acquired] = []
        left = wanted.max_records
        position = self.next_fetch_offset
        for first, last in [*self._in_blocks(found, wanted), Span(upto, upto - 1)]:
            if left <= 0 or not self._archive_gap(position, first - 1):
                break
            left = self._take(taken, first, last, left, exact=wanted.exact)
            position = last + 1
        lock_until_ms = now_ms + self.limits.lock_duration_ms
        put(
            self._runs,
            [Run(one.first, one.last, ACQUIRED, one.delivery_count, member, lock_until_ms) for one in taken],
        )
        self._advance()
        return _joined(taken, None if wanted.exact else wanted.batch_size)

    def _in_blocks(self, found: Sequence[Span], wanted: Wanted) -> list[Span]:
        """Neighbours that were never in flight as one, as long as all of them will be taken: batches can be small."""
        room_end = self.start_offset + self.limits.record_locks
        size = wanted.max_records if wanted.exact else wanted.batch_size
        blocks: list[Span] = []
        begin, position, total = 0, -1, 0
        for first, last in found:
            total += last - first + 1
            will_be_taken = total <= wanted.max_records and first < room_end
            if first == position < begin + size and begin >= self.end_offset and will_be_taken:
                blocks[-1] = Span(begin, last)
            else:
                blocks.append(Span(first, last))
                begin = first
            position = last + 1
        return blocks

    def _take(self, taken: list[Acquired], first: int, last: int, left: int, *, exact: bool) -> int:
        """Adds what is available in one span; how many records may still be taken."""
        if self._may_extend:
            self._extend(min(last, max(first, self.end_offset) + left - 1) + 1 if exact else last + 1)
        for run, is_whole in self._available_pieces(first, last):
            if not is_whole and taken:
                return 0
            end = min(run.last, run.first + left - 1) if exact else run.last
            taken.append(Acquired(run.first, end, run.delivery_count + 1))
            left -= end - run.first + 1
            if not is_whole:
                return 0
            if exact and left <= 0:
                break
        return left

    def _available_pieces(self, first: int, last: int) -> Iterator[tuple[Run, bool]]:
        """Available runs in the span, each with whether it is whole; one that failed often enough is cut."""
        limit = self.limits.delivery_count
        throttled_from = max(_THROTTLE_MIN, (limit + 1) // 2)
        for run in self._overlapping(first, last):
            if run.state is not AVAILABLE:
                continue
            if run.delivery_count < throttled_from:
                yield run, True
                continue
            size = max(1, (run.last - run.first + 1) >> (run.delivery_count - throttled_from + 1))
            if limit > _THROTTLE_MIN and run.delivery_count >= limit - 1:
                size = 1
            yield run._replace(last=run.first + size - 1), False

    def _archive_gap(self, first: int, last: int) -> bool:
        """False when there is no room for it: what lies behind cannot be acquired then either."""
        if last < first:  # as between most batches
            return last < self.end_offset
        if self._may_extend:
            self._extend(last + 1)
        empty = [run._replace(state=ARCHIVED) for run in self._overlapping(first, last) if run.state is AVAILABLE]
        put(self._runs, empty)
        return last < self.end_offset

    # -- letting go

    def acknowledge(self, member: str, acks: Sequence[Ack], now_ms: int) -> StateWrite | None:
        """All of it or, with a KafkaError, nothing. What the start offset has passed belongs to no member any more."""
        lock_until_ms = now_ms + self.limits.lock_duration_ms
        renewed: list[Run] = []
        left: list[Run] = []
        for run, kind in self._acknowledged(member, acks):
            if kind is AckType.RENEW:
                renewed.append(run._replace(lock_until_ms=lock_until_ms))
            else:
                left.append(self._changed_to(run, _STATE_AFTER[kind]))
        put(self._runs, renewed)
        return self._release(left)

    def _acknowledged(self, member: str, acks: Iterable[Ack]) -> Iterator[tuple[Run, AckType]]:
        """What is acknowledged, piece by piece; KafkaError where that cannot be."""
        position = -1
        for ack in acks:
            if ack.first <= position:
                raise _refused(ErrorCode.INVALID_REQUEST, ack, "it is acknowledged twice, or out of order")
            position = ack.last
            # The ends come first: what they allow is in memory already, while types may be sent without end.
            if ack.last >= self.end_offset:
                raise _refused(ErrorCode.INVALID_REQUEST, ack, f"no record from offset {self.end_offset} is acquired")
            if ack.last < self.start_offset:
                raise _refused(ErrorCode.INVALID_RECORD_STATE, ack, "it is already acknowledged or deleted")
            for first, last, kind in _marks(ack):
                for run in self._overlapping(first, last):
                    if run.state is not ACQUIRED:
                        raise _refused(ErrorCode.INVALID_RECORD_STATE, run, "it is not acquired")
                    if run.member != member:
                        raise _refused(ErrorCode.INVALID_RECORD_STATE, run, "another member acquired it")
                    yield run, kind

    def release(self, member: str) -> StateWrite | None:
        """The member's session is over: what it holds is available again, as if it had not been delivered."""
        held = [run for run in self._runs if run.state is ACQUIRED and run.member == member]
        return self._release([self._changed_to(run, AVAILABLE, seen=False) for run in held])

    def expire(self, now_ms: int) -> StateWrite | None:
        """Takes back what was not acknowledged in time."""
        late = [run for run in self._runs if run.state is ACQUIRED and run.lock_until_ms <= now_ms]
        return self._release([self._changed_to(run, AVAILABLE) for run in late])

    def _changed_to(self, run: Run, state: RecordState, *, seen: bool = True) -> Run:
        count = run.delivery_count if seen else run.delivery_count - 1
        if state is AVAILABLE and count >= self.limits.delivery_count:
            state = ARCHIVED
        return Run(run.first, run.last, state, count)

    def _release(self, runs: Sequence[Run]) -> StateWrite | None:
        if not runs:
            return None
        put(self._runs, runs)
        self._advance()
        start = self.start_offset
        return StateWrite(
            start,
            self.delivery_complete_count,
            [StateBatch(max(first, start), last, *rest) for first, last, *rest, _, _ in runs if last >= start],
        )

    # -- the ends

    def move_start(self, log_start_offset: int) -> None:
        """Older records are deleted; who holds one will find its acknowledgement ignored."""
        if log_start_offset <= self.start_offset:
            return
        self._extend(log_start_offset)
        del self._runs[: cut(self._runs, log_start_offset)]
        self.start_offset = log_start_offset
        self._advance()

    def truncate(self, log_end_offset: int) -> StateWrite | None:
        """The log lost its end, as when a machine dies before it is on the disk: new records will have old offsets."""
        if log_end_offset >= self.end_offset:
            return None
        lost = StateBatch(log_end_offset, self.end_offset - 1, AVAILABLE, 0)
        del self._runs[cut(self._runs, log_end_offset) :]
        self.start_offset = min(self.start_offset, log_end_offset)
        self.end_offset = log_end_offset
        return StateWrite(self.start_offset, self.delivery_complete_count, [lost])

    def _extend(self, end_offset: int) -> None:
        if end_offset <= self.end_offset:
            return
        new = Run(self.end_offset, end_offset - 1, AVAILABLE)
        if self._runs and self._runs[-1][2:] == new[2:]:
            self._runs[-1] = self._runs[-1]._replace(last=new.last)
        else:
            self._runs.append(new)
        self.end_offset = end_offset

    def _advance(self) -> None:
        final = 0
        while final < len(self._runs) and self._runs[final].state in _FINAL:
            final += 1
        if final:
            del self._runs[:final]
            self.start_offset = self._runs[0].first if self._runs else self.end_offset

    # -- runs

    def _overlapping(self, first: int, last: int) -> Iterator[Run]:
        """The runs of the span, cut to it; what lies outside of what is in flight is left out."""
        number = max(0, find(self._runs, first + 1) - 1)
        while number < len(self._runs) and first <= last and self._runs[number].first <= last:
            run = self._runs[number]
            if first <= run.first and run.last <= last:
                yield run
            elif run.last >= first:
                yield run._replace(first=max(run.first, first), last=min(run.last, last))
            number += 1


def _marks(ack: Ack) -> Iterator[tuple[int, int, AckType]]:
    """The acknowledgement as spans of one type each."""
    if ack.first > ack.last or ack.first < 0 or len(ack.types) not in (1, ack.last - ack.first + 1):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"acknowledgement of offsets {ack.first} to {ack.last} has {len(ack.types)} types",
        )
    if len(ack.types) == 1:
        yield ack.first, ack.last, _ACK_TYPES[ack.types[0]]
        return
    first = ack.first
    for kind, same in groupby(ack.types):
        count = len(list(same))
        yield first, first + count - 1, _ACK_TYPES[kind]
        first += count


def _refused(code: ErrorCode, span: Ack | Run, why: str) -> KafkaError:
    return KafkaError(code, f"offsets {span.first} to {span.last} cannot be acknowledged: {why}")


def _joined(taken: Sequence[Acquired], size_max: int | None) -> list[Acquired]:
    """Neighbours of the same delivery count become one, as long as it is smaller than `size_max`."""
    joined: list[Acquired] = []
    for one in taken:
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.last + 1 == one.first
            and before.delivery_count == one.delivery_count
            and (size_max is None or before.last - before.first + 1 < size_max)
        ):
            joined[-1] = before._replace(last=one.last)
        else:
            joined.append(one)
    return joined

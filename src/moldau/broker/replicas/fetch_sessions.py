"""Fetch sessions (KIP-227): a client names its partitions once, then sends and receives only what changed.

A fetch is one of three, by its session id and epoch:

    id    epoch   meaning
    0     -1      no session: the request names all partitions, the answer holds all of them
    any    0      a new session: as above, and the partitions are remembered under a new id
    n     -1      the session ends; answered as a fetch without one
    n     e > 0   incremental: the request holds only changes, the answer only partitions that changed

Pure state, no I/O. The cache is bounded, in sessions and in bytes: a session unused for two minutes makes room, and its
client gets FETCH_SESSION_ID_NOT_FOUND and starts over with a full fetch. While all are in use, a new client gets none
and continues with full fetches: otherwise, clients without room would keep evicting each other. A session that grows
beyond the bounds ends in the same way.

A partition that does not exist is remembered, too, as in Kafka: the client names it only once, and has to hear of it
when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from moldau.errors import ErrorCode, KafkaError
from moldau.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequest

TopicKey: TypeAlias = "tuple[str | None, bytes | None]"
PartitionKey: TypeAlias = "tuple[str | bytes | None, int]"
TopicResults: TypeAlias = "tuple[str | None, bytes | None, list[FetchPartitionResult]]"

UNUSED_MIN_S = 120.0
"""Kafka's `min.incremental.fetch.session.eviction.ms`."""
PARTITION_BYTES = 400
"""What one partition takes in a session, without the name of its topic; measured."""
BYTES_MAX = 64 * 1024 * 1024
"""For all sessions together: 150,000 partitions. A request of 1 MB can name 30,000, whether they exist or not, so that
a thousand sessions could take twelve gigabytes."""
PARTITIONS_MAX = 10_000
"""Per session, because each fetch goes through all of its partitions. A client that reads more partitions fetches
without a session, with longer requests."""


class Wanted(NamedTuple):
    """One partition a fetch asks for: by name up to version 12, by topic id after it."""

    name: str | None
    topic_id: bytes | None
    partition: FetchPartition


class _Remembered:
    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        # What was last sent to the client; nothing yet, so the first answer always differs.
        self.high_watermark = -2
        self.log_start_offset = -2

    def has_changed(self, result: FetchPartitionResult) -> bool:
        return bool(
            result.records
            or result.error_code
            or result.preferred_read_replica >= 0
            or result.diverging_epoch is not None
            or result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
        )

    def on_sent(self, result: FetchPartitionResult) -> None:
        if result.error_code:
            # Send it again next time: the client has to see that the error is over.
            self.high_watermark = -2
            return
        self.high_watermark = result.high_watermark
        self.log_start_offset = result.log_start_offset


class FetchSession:
    __slots__ = ("epoch", "id", "last_used_s", "partitions", "size_bytes", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool) -> None:
        self.id = session_id
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.last_used_s = 0.0
        self.partitions: dict[PartitionKey, _Remembered] = {}
        self.size_bytes = 0

    def remember(self, wanted: Wanted) -> None:
        key = (wanted.topic_id or wanted.name, wanted.partition.index)
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = _Remembered(wanted)
            self.size_bytes += _size_of(wanted.name)
        else:
            known.wanted = wanted

    def update(self, request: FetchRequest) -> None:
        for wanted in wanted_of(request):
            self.remember(wanted)
        for topic in request.forgotten:
            for index in topic.partitions:
                if self.partitions.pop((topic.topic_id or topic.name, index), None) is not None:
                    self.size_bytes -= _size_of(topic.name)

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == 2**31 - 1 else self.epoch + 1

    def changes(
        self, requested: Sequence[tuple[PartitionKey, _Remembered]], results: Sequence[FetchPartitionResult]
    ) -> list[tuple[Wanted, FetchPartitionResult]]:
        """The results worth sending. Partitions that got records move to the back of the session's order,

        so that one with much data cannot starve the others of a fetch's bytes.
        """
        changed = []
        for (key, known), result in zip(requested, results, strict=True):
            if known.has_changed(result):
                known.on_sent(result)
                changed.append((known.wanted, result))
                if result.records and self.partitions.pop(key, None) is not None:
                    self.partitions[key] = known
        return changed


class FetchPlan(NamedTuple):
    """What to read, and how the results become the answer's (session id, topics)."""

    wanted: Sequence[Wanted]
    answer: Callable[[Sequence[FetchPartitionResult]], tuple[int, list[TopicResults]]]


def _size_of(topic: str | None) -> int:
    return PARTITION_BYTES + len(topic or "")


def wanted_of(request: FetchRequest) -> list[Wanted]:
    return [Wanted(topic.name, topic.topic_id, partition) for topic in request.topics for partition in topic.partitions]


def group_by_topic(pairs: Sequence[tuple[Wanted, FetchPartitionResult]]) -> list[TopicResults]:
    """Runs of the same topic become one entry, in order; a topic may so appear twice, as in Kafka."""
    topics: list[TopicResults] = []
    last: TopicKey | None = None
    for wanted, result in pairs:
        key = (wanted.name, wanted.topic_id)
        if key != last:
            topics.append((wanted.name, wanted.topic_id, []))
            last = key
        topics[-1][2].append(result)
    return topics


class FetchSessions:
    def __init__(
        self,
        slots_max: int,
        now_s: Callable[[], float],
        new_id: Callable[[], int],
        *,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """`now_s` is monotonic."""
        self._slots_max = slots_max
        self._bytes_max = bytes_max
        self.size_bytes = 0
        self._now_s = now_s
        self._new_id = new_id
        # In order of last use: a session goes to the end each time it is found.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, uses_topic_ids: bool) -> FetchPlan:
        if request.session_epoch <= 0:
            self._end(request.session_id)
            wanted = wanted_of(request)
            if request.session_epoch == 0 and wanted:
                return self._full(self._create(wanted, uses_topic_ids), wanted)
            return FetchPlan(wanted, lambda results: (0, group_by_topic(list(zip(wanted, results, strict=True)))))
        return self._incremental(self._find(request, uses_topic_ids), request)

    def _full(self, session: FetchSession | None, wanted: list[Wanted]) -> FetchPlan:
        def answer(results: Sequence[FetchPartitionResult]) -> tuple[int, list[TopicResults]]:
            pairs = list(zip(wanted, results, strict=True))
            if session is None:
                return 0, group_by_topic(pairs)
            for one, result in pairs:
                known = session.partitions.get((one.topic_id or one.name, one.partition.index))
                if known is not None:
                    known.on_sent(result)
            return session.id, group_by_topic(pairs)

        return FetchPlan(wanted, answer)

    def _incremental(self, session: FetchSession, request: FetchRequest) -> FetchPlan:
        before = session.size_bytes
        session.update(request)
        session.next_epoch()
        self.size_bytes += session.size_bytes - before
        if len(session.partitions) > PARTITIONS_MAX or not self._has_room(0):
            self._end(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

        requested = list(session.partitions.items())

        def answer(results: Sequence[FetchPartitionResult]) -> tuple[int, list[TopicResults]]:
            return session.id, group_by_topic(session.changes(requested, results))

        return FetchPlan([known.wanted for _, known in requested], answer)

    def _find(self, request: FetchRequest, uses_topic_ids: bool) -> FetchSession:
        session = self._sessions.pop(request.session_id, None)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session.id] = session
        session.last_used_s = self._now_s()
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def _create(self, wanted: Sequence[Wanted], uses_topic_ids: bool) -> FetchSession | None:
        if self._slots_max <= 0 or len(wanted) > PARTITIONS_MAX:
            return None
        session = FetchSession(0, uses_topic_ids)
        for one in wanted:
            session.remember(one)
        if not self._has_room(1, session.size_bytes):
            return None
        while session.id == 0 or session.id in self._sessions:
            session.id = self._new_id()
        self._sessions[session.id] = session
        self.size_bytes += session.size_bytes
        session.last_used_s = self._now_s()
        return session

    def _has_room(self, sessions: int, size_bytes: int = 0) -> bool:
        """Whether so much more fits in, once unused sessions are removed."""
        while len(self._sessions) + sessions > self._slots_max or self.size_bytes + size_bytes > self._bytes_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or self._now_s() - oldest.last_used_s < UNUSED_MIN_S:
                return False
            self._end(oldest.id)
        return True

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.size_bytes -= session.size_bytes

"""A shard with consumer groups, topics that change, a clock that stands until it is moved, and members that behave."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.coordinators.consumer.assignors import Partitions
from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.heartbeat import Heartbeat, HeartbeatReply, heartbeat
from moldau.coordinators.effects import Effects
from moldau.coordinators.group_kinds import GROUP_RECORDS
from moldau.coordinators.group_shard import GroupShard
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import encode_key, encode_value

GROUP = "readers"
SESSION_MS = 45_000
REBALANCE_MS = 60_000


class LabTopics:
    def __init__(self, **counts: int) -> None:
        self._topics: dict[str, tuple[uuid.UUID, int]] = {}
        self._made = 0
        for name, count in counts.items():
            self.put(name, count)

    def put(self, name: str, count: int) -> None:
        self._made += 1
        topic_id = self._topics[name][0] if name in self._topics else uuid.UUID(int=self._made)
        self._topics[name] = topic_id, count

    def delete(self, name: str) -> None:
        del self._topics[name]

    def partition_count(self, name: str) -> int | None:
        return self._topics[name][1] if name in self._topics else None

    def topic_id(self, name: str) -> uuid.UUID | None:
        return self._topics[name][0] if name in self._topics else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, (known, _) in self._topics.items() if known == topic_id), None)

    def names(self) -> Iterable[str]:
        return list(self._topics)

    def partitions(self, *names: str) -> AbstractSet[tuple[uuid.UUID, int]]:
        """All partitions of those among these that exist."""
        known = [self._topics[name] for name in names if name in self._topics]
        return {(topic_id, number) for topic_id, count in known for number in range(count)}


class Lab:
    def __init__(self, topics: LabTopics | None = None, **config: Any) -> None:
        self.config, _ = BrokerConfig.from_properties(
            {key.replace("_", "."): str(value) for key, value in config.items()}
        )
        self.topics = topics or LabTopics(t=4)
        self.now_ms = 1_000_000
        self.records: list[tuple[bytes, bytes | None]] = []
        self.replies: dict[Any, Any] = {}
        self._wakes: list[tuple[int, int, Any]] = []
        self._count = 0
        self.shard = GroupShard(lambda: self.config, self.topics, wall_clock=self.wall_clock)

    def wall_clock(self) -> int:
        """Another one than the `now_ms` of steps."""
        return 1_700_000_000_000 + self.now_ms

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    # -- the shell

    def perform(self, effects: Effects) -> None:
        self.records += [
            (encode_key(key), None if value is None else encode_value(value)) for key, value in effects.records
        ]
        for waiter, reply in effects.replies:
            assert waiter not in self.replies, "answered twice"
            self.replies[waiter] = reply
        for at_ms, key in effects.wakes:
            self._count += 1
            heapq.heappush(self._wakes, (at_ms, self._count, key))

    def ask(self, step: Any, request: Any) -> Any:
        """The reply, if there is one yet; raises the KafkaError of a refusal."""
        waiter = self.new_waiter()
        self.perform(step(self.shard, waiter, request, self.now_ms))
        return self.replies.get(waiter)

    def new_waiter(self) -> int:
        self._count += 1
        return self._count

    def refused(self, request: Heartbeat) -> ErrorCode:
        before = durable(self.shard)
        try:
            reply = self.ask(heartbeat, request)
        except KafkaError as error:
            assert durable(self.shard) == before, "a refused request changed something"
            return error.code
        raise AssertionError(f"not refused: {reply}")

    def pass_ms(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while self._wakes and self._wakes[0][0] <= until_ms:
            at_ms, _, key = heapq.heappop(self._wakes)
            self.now_ms = max(self.now_ms, at_ms)
            self.perform(self.shard.wake(key, self.now_ms))
        self.now_ms = until_ms

    def change_topic(self, name: str, count: int | None) -> None:
        """To so many partitions; None deletes it."""
        if count is None:
            self.topics.delete(name)
        else:
            self.topics.put(name, count)
        self.perform(self.shard.topics_changed(self.now_ms))

    def replayed(self) -> GroupShard:
        shard = GroupShard(lambda: self.config, self.topics, wall_clock=self.wall_clock)
        for offset, (key, value) in enumerate(self.records):
            pair = GROUP_RECORDS.decode(key, value)
            assert pair is not None
            shard.replay(*pair, offset=offset, timestamp_ms=self.now_ms)
        return shard

    def restart(self) -> None:
        """As after a crash: only the records are left."""
        self.shard = self.replayed()
        self._wakes.clear()
        self.perform(self.shard.loaded(self.now_ms))


def durable(shard: GroupShard) -> dict[str, Any]:
    """What has to outlive a crash, of each consumer group."""
    return {
        group.group_id: (
            group.epoch,
            group.metadata_hash,
            group.target_epoch,
            dict(group.members),
            dict(group.targets),
            dict(group.resolved),
            group.has_partition_metadata,
            dict(group.static_members),
            {topic: dict(owners) for topic, owners in group.owners.items()},
        )
        for group in shard.groups.values()
        if isinstance(group, ConsumerGroup)
    }


class LabMember:
    """A client: it owns what it was given, gives up what it is told to, and tells so."""

    def __init__(self, lab: Lab, member_id: str, *topics: str, regex: str | None = None, **fields: Any) -> None:
        self.lab = lab
        self.member_id = member_id
        self.topics = frozenset(topics)
        self.regex = regex
        self.fields = fields
        self.epoch = 0
        self.owned: set[tuple[uuid.UUID, int]] = set()
        self.assigned: set[tuple[uuid.UUID, int]] = set()
        self.must_be_full = True

    def request(self, **fields: Any) -> Heartbeat:
        """A full one while it joins or does not know whether it was heard, else only what it owns."""
        full: dict[str, Any] = {}
        if self.must_be_full or self.epoch == 0:
            full = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "subscribed_topic_names": self.topics,
                "subscribed_topic_regex": self.regex,
            }
        owned = by_topic(self.owned)
        return Heartbeat(GROUP, self.member_id, self.epoch, **{**full, "owned": owned, **self.fields, **fields})

    def beat(self, *, is_lost: bool = False, **fields: Any) -> HeartbeatReply | None:
        """One heartbeat; with `is_lost`, its answer does not arrive."""
        try:
            reply = self.lab.ask(heartbeat, self.request(**fields))
        except KafkaError as error:
            if error.code not in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                raise
            self.forget()
            return None
        self.must_be_full = is_lost
        if is_lost:
            return None
        assert isinstance(reply, HeartbeatReply)
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            self.assigned = pairs(reply.assignment)
            if self.owned <= self.assigned:
                self.owned = set(self.assigned)
        return reply

    def revoke(self) -> None:
        """Gives up what it was told to, in its own time."""
        if not self.owned <= self.assigned:
            self.owned = set(self.assigned)

    def leave(self, epoch: int = -1) -> None:
        self.lab.ask(heartbeat, Heartbeat(GROUP, self.member_id, epoch, self.fields.get("instance_id")))
        self.forget()

    def forget(self) -> None:
        self.epoch = 0
        self.owned = set()
        self.assigned = set()
        self.must_be_full = True


def by_topic(partitions: set[tuple[uuid.UUID, int]]) -> Partitions:
    topics = {topic for topic, _ in partitions}
    return {topic: frozenset(number for other, number in partitions if other == topic) for topic in topics}


def pairs(partitions: Partitions) -> set[tuple[uuid.UUID, int]]:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


def settle(members: Iterable[LabMember], rounds: int = 12) -> None:
    members = list(members)
    for _ in range(rounds):
        for member in members:
            member.beat()
            member.revoke()

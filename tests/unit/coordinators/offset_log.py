"""A group shard with a log in memory: what its steps record can be replayed into another shard, by way of the bytes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.group_kinds import GROUP_RECORDS
from moldau.coordinators.group_shard import GroupShard
from moldau.coordinators.offsets.commits import Commit, Fetch, Fetched, Offset, commit, fetch
from moldau.errors import ErrorCode
from moldau.wire.state_records import encode_key, encode_value


class FewTopics:
    """Topics with three partitions each."""

    def __init__(self, *names: str) -> None:
        self.ids = {name: uuid.uuid4() for name in names}

    def partition_count(self, name: str) -> int | None:
        return 3 if name in self.ids else None

    def topic_id(self, name: str) -> uuid.UUID | None:
        return self.ids.get(name)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def names(self) -> Iterable[str]:
        return self.ids


class OffsetLog:
    """Runs steps on a shard, keeps their records as bytes, and loads them again."""

    def __init__(self, *topics: str, **properties: str) -> None:
        self.config, _ = BrokerConfig.from_properties({"node.id": "1", **properties})
        self.topics = FewTopics(*topics)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None, int] | tuple[int, bool]] = []
        self.wakes: list[tuple[int, Any]] = []
        self.shard = self.reload()

    def wall_clock(self) -> int:
        """Another one than the `now_ms` of steps."""
        return 1_700_000_000_000 + self.now_ms

    def reload(self) -> GroupShard:
        self.shard = GroupShard(lambda: self.config, self.topics, wall_clock=self.wall_clock)
        for offset, entry in enumerate(self.log):
            if len(entry) == 2:
                self.shard.replay_marker(*entry)
                continue
            key, value, producer_id = entry
            pair = GROUP_RECORDS.decode(key, value)
            assert pair is not None
            self.shard.replay(*pair, offset=offset, timestamp_ms=self.now_ms, producer_id=producer_id)
        self.wakes = []
        self.perform(self.shard.loaded(self.now_ms))
        return self.shard

    def perform(self, effects: Effects) -> Any:
        """The reply, if there is one."""
        producer_id = effects.producer[0] if effects.producer is not None else -1
        for key, value in effects.records:
            self.log.append((encode_key(key), None if value is None else encode_value(value), producer_id))
        self.wakes += effects.wakes
        return effects.replies[0][1] if effects.replies else None

    def step(self, run: Callable[[GroupShard], Effects]) -> Any:
        return self.perform(run(self.shard))

    def commit(self, group_id: str, *offsets: Offset, **fields: Any) -> list[ErrorCode]:
        asked = {"member_id": "", "instance_id": None, "generation": -1, **fields}
        request = Commit(group_id=group_id, offsets=offsets, **asked)
        codes: list[ErrorCode] = self.step(lambda shard: commit(shard, None, request, self.now_ms))
        return codes

    def end(self, producer_id: int, committed: bool) -> None:
        """A transaction's marker."""
        self.log.append((producer_id, committed))
        self.shard.replay_marker(producer_id, committed)

    def fetch(self, group_id: str, **fields: Any) -> dict[tuple[str, int], Fetched]:
        request = Fetch(group_id=group_id, **{"partitions": None, **fields})
        return {(one.topic, one.partition): one for one in fetch(self.shard, request)}

    def offsets(self, group_id: str) -> dict[tuple[str, int], int]:
        return {partition: fetched.offset for partition, fetched in self.fetch(group_id).items()}

    def pass_time(self, milliseconds: int) -> None:
        """Runs every wake that falls into it."""
        until_ms = self.now_ms + milliseconds
        while self.wakes and min(at_ms for at_ms, _ in self.wakes) <= until_ms:
            due = min(self.wakes, key=lambda wake: wake[0])
            self.wakes.remove(due)
            self.now_ms = max(self.now_ms, due[0])
            self.perform(self.shard.wake(due[1], self.now_ms))
        self.now_ms = until_ms

    def last_record(self) -> tuple[object, object]:
        key, value, _ = self.log[-1]  # type: ignore[misc]  # it is no marker
        pair = GROUP_RECORDS.decode(key, value)
        assert pair is not None
        return pair

"""Random schedules of commits, transactions, deletions, expiry and reloads, against a model that is plainly right.

The model keeps the log's entries and works out from them, each time anew, what every partition's offset is: the newest
commit that counts and that no tombstone follows.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.coordinators.group_kinds import GROUP_RECORDS
from moldau.coordinators.offsets.cleanup import delete_group, delete_offsets, delete_offsets_of_deleted_topics
from moldau.coordinators.offsets.commits import Offset, RequestedPartition
from moldau.coordinators.offsets.records import OffsetCommitKey
from moldau.errors import ErrorCode
from moldau.wire.topic_partition import TopicPartition
from tests.examples import examples
from tests.unit.coordinators.offset_log import OffsetLog

GROUPS = st.sampled_from(["a", "b"])
TOPICS = st.sampled_from(["t", "u"])
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 2))
PRODUCERS = st.integers(1, 3)
MINUTE_MS = 60_000
RETENTION_MS = 10 * MINUTE_MS

Key = tuple[str, str, int]


class Committed:
    """One commit of the history."""

    def __init__(self, key: Key, offset: int, producer: int | None, at_ms: int) -> None:
        self.key = key
        self.offset = offset
        self.at_ms = at_ms
        self.producer = producer  # None once it counts
        self.is_gone = False


class Model:
    def __init__(self) -> None:
        self.history: list[Committed] = []

    def current(self) -> dict[Key, Committed]:
        return {one.key: one for one in self.history if one.producer is None and not one.is_gone}

    def pending(self) -> set[Key]:
        return {one.key for one in self.history if one.producer is not None and not one.is_gone}

    def end(self, producer: int, committed: bool) -> None:
        for one in self.history:
            if one.producer == producer:
                one.producer = None
                one.is_gone |= not committed

    def remove(self, key: Key) -> None:
        for one in self.history:
            one.is_gone |= one.key == key


class OffsetSchedules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = OffsetLog(
            "t", "u", **{"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": str(MINUTE_MS)}
        )
        self.model = Model()
        self.next_offset = 0

    def _offset(self, partition: TopicPartition) -> Offset:
        self.next_offset += 1
        return Offset(*partition, self.next_offset)

    @rule(group=GROUPS, partitions=st.lists(PARTITIONS, min_size=1, max_size=3))
    def commit(self, group: str, partitions: list[TopicPartition]) -> None:
        self._commit(group, partitions, None)

    @rule(group=GROUPS, partitions=st.lists(PARTITIONS, min_size=1, max_size=3), producer=PRODUCERS)
    def commit_in_transaction(self, group: str, partitions: list[TopicPartition], producer: int) -> None:
        self._commit(group, partitions, producer)

    def _commit(self, group: str, partitions: list[TopicPartition], producer: int | None) -> None:
        offsets = [self._offset(partition) for partition in partitions if partition[0] in self.log.topics.ids]
        fields: dict[str, Any] = {} if producer is None else {"producer": (producer, 0)}
        assert set(self.log.commit(group, *offsets, **fields)) <= {ErrorCode.NONE}
        for one in offsets:
            self.model.history.append(
                Committed((group, one.topic, one.partition), one.offset, producer, self.log.now_ms)
            )

    @rule(producer=PRODUCERS, committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        self.log.end(producer, committed)
        self.model.end(producer, committed)

    @precondition(lambda self: self.log.shard.groups)
    @rule(data=st.data(), partitions=st.lists(PARTITIONS, min_size=1, max_size=3))
    def delete(self, data: st.DataObject, partitions: list[TopicPartition]) -> None:
        group = data.draw(st.sampled_from(sorted(self.log.shard.groups)))
        self.log.step(lambda shard: delete_offsets(shard, None, group, partitions))
        for partition in partitions:
            self.model.remove((group, *partition))

    @precondition(lambda self: self.log.shard.groups)
    @rule(data=st.data())
    def delete_the_group(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.log.shard.groups)))
        self.log.step(lambda shard: delete_group(shard, None, group))
        for one in self.model.history:
            one.is_gone |= one.key[0] == group

    @rule(topic=TOPICS)
    def delete_and_create_topic(self, topic: str) -> None:
        self.log.topics.ids.pop(topic)
        self.log.step(delete_offsets_of_deleted_topics)
        self.log.topics = type(self.log.topics)("t", "u")
        self.log.shard.topics = self.log.topics
        for one in self.model.history:
            one.is_gone |= one.key[1] == topic

    @rule(minutes=st.integers(1, 12))
    def time_passes(self, minutes: int) -> None:
        # To the end of a check, so that the model need not know when in between the shard looked.
        self.log.pass_time(minutes * MINUTE_MS)
        pending = self.model.pending()
        for key, one in self.model.current().items():
            if self.log.now_ms - one.at_ms >= RETENTION_MS and key not in pending:
                self.model.remove(key)

    @rule()
    def reload(self) -> None:
        due = [at_ms for at_ms, _ in self.log.wakes]
        self.log.reload()
        # The checks keep their times: a restart would only move them.
        self.log.wakes = [(min(due), key) for _, key in self.log.wakes]
        self.log.shard._expiry._due_ms = min(due)

    @invariant()
    def every_offset_is_the_models(self) -> None:
        current, pending = self.model.current(), self.model.pending()
        for group in ("a", "b"):
            expected = {key[1:]: one.offset for key, one in current.items() if key[0] == group}
            assert self.log.offsets(group) == expected
            asked = [RequestedPartition(topic, partition) for topic in ("t", "u") for partition in range(3)]
            stable = self.log.fetch(group, partitions=asked, require_stable=True)
            unstable = {one for one, fetched in stable.items() if fetched.error is ErrorCode.UNSTABLE_OFFSET_COMMIT}
            assert unstable == {key[1:] for key in pending if key[0] == group}
            has_any = expected or unstable
            assert not has_any or group in self.log.shard.groups

    @invariant()
    def what_is_replayed_is_what_is_known(self) -> None:
        live = self.log.shard
        loaded = self._replayed()
        for group in ("a", "b"):
            assert dict(loaded.offsets.of_group(group)) == dict(live.offsets.of_group(group))
            assert loaded.offsets.keys(group) == live.offsets.keys(group)

    def _replayed(self) -> Any:
        other = OffsetLog("t", "u")
        other.log = self.log.log
        return other.reload()

    def teardown(self) -> None:
        """The newest record of each plain key is what compaction would leave, and it tells the same."""
        newest: dict[bytes, tuple[bytes | None, int]] = {}
        for entry in self.log.log:
            if len(entry) == 3 and entry[2] < 0:
                newest[entry[0]] = (entry[1], entry[2])
        if any(len(entry) == 3 and entry[2] >= 0 for entry in self.log.log):
            return  # compaction treats transactions by rules of its own, tested with the cleaner
        current = {key: one.offset for key, one in self.model.current().items()}
        for key_bytes, (value_bytes, _) in newest.items():
            pair = GROUP_RECORDS.decode(key_bytes, value_bytes)
            assert pair is not None
            key, value = pair
            if isinstance(key, OffsetCommitKey):
                assert current.get((key.group, key.topic, key.partition)) == (value.offset if value else None)


TestOffsetSchedules = OffsetSchedules.TestCase
TestOffsetSchedules.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)

"""Committed offsets: who may commit, what is told to whom, and when an offset goes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.coordinators.classic.records import GroupMetadataKey, GroupMetadataValue
from moldau.coordinators.effects import Effects
from moldau.coordinators.group import GroupType
from moldau.coordinators.offsets import cleanup
from moldau.coordinators.offsets.cleanup import delete_group, delete_offsets, delete_offsets_of_deleted_topics
from moldau.coordinators.offsets.commits import Offset, RequestedPartition
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.topic_partition import TopicPartition
from tests.unit.coordinators.offset_log import OffsetLog

MINUTE_MS = 60_000
RETENTION = {"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "1000"}


class MemberGroup:
    """A group with one member, `m`, at epoch 5, subscribed to `t`; of the newer protocol unless told otherwise."""

    type = GroupType.CONSUMER
    state_name = "Stable"
    protocol_type = "consumer"
    is_empty = False

    def __init__(self, group_id: str = "g") -> None:
        self.group_id = group_id
        self.since_ms: int | None = None

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        knows_epochs: bool = True,
    ) -> None:
        if not knows_epochs:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        self.validate_offset_fetch(member_id, generation)

    def validate_offset_fetch(self, member_id: str, member_epoch: int) -> None:
        if member_id != "m":
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_epoch != 5:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    def validate_delete(self) -> None:
        if not self.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic == "t" and not self.is_empty

    def empty_since_ms(self) -> int | None:
        return self.since_ms

    def tombstones(self) -> list[Any]:
        return [GroupMetadataKey(self.group_id)]

    def wake(self, shard: Any, key: tuple[Any, ...], now_ms: int) -> Effects:
        raise AssertionError("nobody wakes it")


@pytest.fixture
def log() -> OffsetLog:
    return OffsetLog("t", "other", **RETENTION)


def add_group(log: OffsetLog, **attributes: Any) -> MemberGroup:
    group = MemberGroup()
    for name, value in attributes.items():
        setattr(group, name, value)
    log.shard.groups["g"] = group
    return group


def test_a_commit_without_a_group_makes_a_simple_one(log: OffsetLog) -> None:
    assert log.commit("g", Offset("t", 0, 42, 7, "why")) == [ErrorCode.NONE]
    fetched = log.fetch("g")["t", 0]
    assert (fetched.offset, fetched.leader_epoch, fetched.metadata) == (42, 7, "why")
    group = log.shard.groups["g"]
    assert (group.type, group.state_name, group.protocol_type) == (GroupType.CLASSIC, "Empty", "")
    assert log.reload().groups["g"].protocol_type == ""
    assert log.offsets("g") == {("t", 0): 42}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"knows_epochs": False}, ErrorCode.ILLEGAL_GENERATION),
        ({"producer": (1, 0)}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_generation_needs_a_group(log: OffsetLog, fields: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        log.commit("g", Offset("t", 0, 1), generation=3, **fields)
    assert raised.value.code is code
    assert not log.log
    assert not log.shard.groups


def test_a_member_with_an_old_epoch_is_refused_in_the_words_of_its_api(log: OffsetLog) -> None:
    add_group(log)
    log.commit("g", Offset("t", 0, 1), member_id="m", generation=5)
    cases: list[tuple[dict[str, Any], ErrorCode]] = [
        ({}, ErrorCode.STALE_MEMBER_EPOCH),
        ({"knows_epochs": False}, ErrorCode.UNSUPPORTED_VERSION),
        ({"producer": (1, 0)}, ErrorCode.ILLEGAL_GENERATION),
    ]
    for fields, code in cases:
        with pytest.raises(KafkaError) as raised:
            log.commit("g", Offset("t", 0, 2), member_id="m", generation=4, **fields)
        assert raised.value.code is code
    assert log.offsets("g") == {("t", 0): 1}


def test_a_topic_that_went_while_the_shard_was_away_takes_its_offsets_along(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1), Offset("other", 0, 2))
    log.commit("g", Offset("t", 1, 3), producer=(7, 0))
    del log.topics.ids["t"]
    log.reload()
    log.topics.ids["t"] = uuid.uuid4()
    log.end(7, committed=True)
    assert log.offsets("g") == {("other", 0): 2}
    log.reload()
    assert log.offsets("g") == {("other", 0): 2}


def test_metadata_that_is_too_long_is_refused_alone() -> None:
    log = OffsetLog("t", **{"offset.metadata.max.bytes": "3"})
    codes = log.commit("g", Offset("t", 0, 1, -1, "abc"), Offset("t", 1, 2, -1, "abcd"), Offset("t", 2, 3))
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert log.offsets("g") == {("t", 0): 1, ("t", 2): 3}


def test_nothing_committed_leaves_no_group() -> None:
    log = OffsetLog("t", **{"offset.metadata.max.bytes": "0"})
    assert log.commit("g", Offset("t", 0, 1, -1, "x")) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert not log.shard.groups


def test_who_fetches_as_a_member_must_be_one(log: OffsetLog) -> None:
    add_group(log)
    log.commit("g", Offset("t", 0, 1), member_id="m", generation=5)
    assert log.fetch("g")["t", 0].offset == 1
    assert log.fetch("g", member_id="m", member_epoch=5)["t", 0].offset == 1
    for member_id, epoch, code in (("m", 4, ErrorCode.STALE_MEMBER_EPOCH), ("x", 5, ErrorCode.UNKNOWN_MEMBER_ID)):
        with pytest.raises(KafkaError) as raised:
            log.fetch("g", member_id=member_id, member_epoch=epoch)
        assert raised.value.code is code


def test_an_offset_of_an_older_topic_of_the_name_is_not_told(log: OffsetLog) -> None:
    old, new = uuid.uuid4(), uuid.uuid4()
    log.commit("g", Offset("t", 0, 9, topic_id=old), Offset("t", 1, 8))
    asked = {
        topic_id: log.fetch(
            "g", partitions=[RequestedPartition("t", 0, topic_id), RequestedPartition("t", 1, topic_id)]
        )
        for topic_id in (old, new, uuid.UUID(int=0))
    }
    assert [asked[topic_id]["t", 0].offset for topic_id in asked] == [9, -1, 9]
    assert [asked[topic_id]["t", 1].offset for topic_id in asked] == [8, 8, 8]


# -- transactions


def test_offsets_of_a_transaction_show_when_it_commits(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1))
    log.commit("g", Offset("t", 0, 5), producer=(7, 0))
    for _ in range(2):
        assert log.fetch("g")["t", 0].offset == 1
        stable = log.fetch(
            "g", partitions=[RequestedPartition("t", 0), RequestedPartition("t", 1)], require_stable=True
        )
        assert stable["t", 0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert stable["t", 1].error is ErrorCode.NONE
        log.reload()
    log.end(7, committed=True)
    for _ in range(2):
        assert log.fetch("g", require_stable=True)["t", 0].offset == 5
        log.reload()


def test_offsets_of_an_aborted_transaction_never_show(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 5), producer=(7, 0))
    log.end(7, committed=False)
    assert log.offsets("g") == {}
    log.reload()
    assert log.offsets("g") == {}


def test_a_plain_commit_after_a_transactional_one_stays(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 5), Offset("t", 1, 6), producer=(7, 0))
    log.commit("g", Offset("t", 0, 9))
    log.end(7, committed=True)
    for _ in range(2):
        assert log.offsets("g") == {("t", 0): 9, ("t", 1): 6}
        log.reload()


def test_each_producer_ends_its_own_transaction(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1), producer=(1, 0))
    log.commit("g", Offset("t", 0, 2), producer=(2, 0))
    log.end(2, committed=True)
    assert log.fetch("g")["t", 0].offset == 2
    assert log.fetch("g", require_stable=True)["t", 0].error is ErrorCode.UNSTABLE_OFFSET_COMMIT
    log.end(1, committed=True)
    assert log.fetch("g", require_stable=True)["t", 0].offset == 2


# -- deleting


def test_offsets_of_topics_that_nobody_reads_can_be_deleted(log: OffsetLog) -> None:
    add_group(log)
    log.commit("g", Offset("t", 0, 1), Offset("other", 0, 2), member_id="m", generation=5)
    partitions = [TopicPartition("t", 0), TopicPartition("other", 0), TopicPartition("other", 1)]
    codes = log.step(lambda shard: delete_offsets(shard, None, "g", partitions))
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert log.offsets("g") == {("t", 0): 1}
    assert len(log.log) == 3  # two commits and one tombstone: what is not there needs none
    log.reload()
    assert log.offsets("g") == {("t", 0): 1}


def test_a_pending_offset_is_deleted_with_the_current_one(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 5), producer=(7, 0))
    log.step(lambda shard: delete_offsets(shard, None, "g", [TopicPartition("t", 0)]))
    log.end(7, committed=True)
    assert log.offsets("g") == {}
    log.reload()
    assert log.offsets("g") == {}


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"type": GroupType.CLASSIC, "protocol_type": "connect"}, ErrorCode.NON_EMPTY_GROUP),
        (None, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_offsets_of_some_groups_cannot_be_deleted(
    log: OffsetLog, attributes: dict[str, Any] | None, code: ErrorCode
) -> None:
    if attributes is not None:
        add_group(log, **attributes)
    with pytest.raises(KafkaError) as raised:
        log.step(lambda shard: delete_offsets(shard, None, "g", [TopicPartition("other", 0)]))
    assert raised.value.code is code


def test_a_group_is_deleted_with_all_it_committed(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1))
    log.commit("g", Offset("t", 1, 5), producer=(7, 0))
    log.step(lambda shard: delete_group(shard, None, "g"))
    log.end(7, committed=True)
    for _ in range(2):
        assert log.offsets("g") == {}
        assert "g" not in log.shard.groups
        log.reload()


def test_a_group_with_members_cannot_be_deleted(log: OffsetLog) -> None:
    add_group(log)
    with pytest.raises(KafkaError) as raised:
        log.step(lambda shard: delete_group(shard, None, "g"))
    assert raised.value.code is ErrorCode.NON_EMPTY_GROUP


def test_a_deleted_topic_takes_its_offsets_along(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1), Offset("other", 0, 2))
    log.commit("h", Offset("t", 2, 3), producer=(7, 0))
    del log.topics.ids["t"]
    log.step(delete_offsets_of_deleted_topics)
    log.end(7, committed=True)
    assert (log.offsets("g"), log.offsets("h")) == ({("other", 0): 2}, {})
    records = len(log.log)
    log.step(delete_offsets_of_deleted_topics)
    assert len(log.log) == records


# -- expiring


def test_a_simple_groups_offsets_expire_by_their_commit(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1))
    log.pass_time(6 * MINUTE_MS)
    log.commit("g", Offset("t", 1, 2))
    log.pass_time(5 * MINUTE_MS)
    assert log.offsets("g") == {("t", 1): 2}
    log.pass_time(6 * MINUTE_MS)
    assert log.offsets("g") == {}
    assert "g" not in log.shard.groups
    key, value = log.last_record()
    assert (key, value) == (GroupMetadataKey("g"), None)


def test_offsets_of_a_group_without_members_expire_after_its_last_member_left(log: OffsetLog) -> None:
    group = add_group(log, type=GroupType.CLASSIC)
    log.commit("g", Offset("t", 0, 1), Offset("other", 0, 1), member_id="m", generation=5)
    log.pass_time(30 * MINUTE_MS)
    assert log.offsets("g") == {("t", 0): 1}  # nobody is subscribed to the other one
    group.is_empty, group.since_ms = True, log.wall_clock()
    log.pass_time(9 * MINUTE_MS)
    assert log.offsets("g") == {("t", 0): 1}
    log.pass_time(2 * MINUTE_MS)
    assert log.offsets("g") == {}


@pytest.mark.parametrize(
    "attributes",
    [
        {"type": GroupType.CLASSIC, "state_name": "PreparingRebalance"},
        {"type": GroupType.CLASSIC, "protocol_type": "connect"},
        {"type": GroupType.SHARE},
    ],
)
def test_offsets_of_a_group_whose_needs_are_not_known_never_expire(log: OffsetLog, attributes: dict[str, Any]) -> None:
    add_group(log, **attributes)
    log.commit("g", Offset("other", 0, 1), member_id="m", generation=5)
    log.pass_time(100 * MINUTE_MS)
    assert log.offsets("g") == {("other", 0): 1}


def test_a_commit_may_say_when_it_expires(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1), retention_ms=MINUTE_MS)
    log.commit("g", Offset("t", 1, 1))
    log.reload()
    log.pass_time(2 * MINUTE_MS)
    assert log.offsets("g") == {("t", 1): 1}


def test_an_offset_stays_while_another_is_pending_for_its_partition(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1))
    log.commit("g", Offset("t", 0, 2), producer=(7, 0))
    log.pass_time(20 * MINUTE_MS)
    assert log.offsets("g") == {("t", 0): 1}
    log.end(7, committed=False)
    log.pass_time(MINUTE_MS)
    assert log.offsets("g") == {}


def test_many_groups_are_looked_at_in_turns(log: OffsetLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "OFFSETS_PER_STEP", 4)
    monkeypatch.setattr(cleanup, "TOMBSTONES_PER_STEP", 3)
    for number in range(10):
        log.commit(f"g{number}", Offset("t", 0, 1), Offset("t", 1, 1))
    log.pass_time(12 * MINUTE_MS)
    assert not log.shard.groups
    assert not log.shard.offsets.groups()
    log.reload()
    assert not log.shard.groups


def test_wakes_of_a_shard_that_was_reloaded_do_not_add_up(log: OffsetLog) -> None:
    stale = list(log.wakes)
    log.pass_time(500)
    log.reload()
    log.wakes += stale
    log.pass_time(10_000)
    assert len(log.wakes) == 1


def test_a_group_record_after_its_offsets_takes_the_simple_groups_place(log: OffsetLog) -> None:
    log.commit("g", Offset("t", 0, 1))
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol=None, leader=None, current_state_timestamp=5, members=()
    )
    effects = Effects()
    effects.record(GroupMetadataKey("g"), value)
    log.perform(effects)
    group = log.reload().groups["g"]
    assert (group.protocol_type, group.empty_since_ms()) == ("consumer", 5)
    assert log.offsets("g") == {("t", 0): 1}

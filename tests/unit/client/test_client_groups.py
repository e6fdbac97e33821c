"""Coordinators are found, and found again when they move or load; older brokers are asked in their own versions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client import groups, transactions
from moldau.client.cluster import ClusterClient
from moldau.errors import ErrorCode, KafkaError, ProtocolError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import error, ms
from moldau.wire.topic_partition import TopicPartition
from tests.unit.client.fake_broker import FakeBroker, metadata_answer

MakeBroker = Callable[..., FakeBroker]


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def _cluster(broker: FakeBroker, **properties: str) -> ClusterClient:
    time = Time()
    return ClusterClient(broker.config(**properties), clock=time.clock, sleep=time.sleep)


def _broker(make: MakeBroker, answers: dict[int, Any], *, finding: list[int] | None = None, **more: Any) -> FakeBroker:
    broker = make(answers | {ApiKey.METADATA: None, ApiKey.FIND_COORDINATOR: None}, **more)
    broker.answers[ApiKey.METADATA] = metadata_answer(broker)
    broker.answers[ApiKey.FIND_COORDINATOR] = _find_answer(broker, finding or [])
    return broker


def _find_answer(broker: FakeBroker, codes: list[int]) -> Any:
    def answer(schema: Any, request: Any) -> Any:
        code = codes.pop(0) if codes else 0
        found = {
            "error_code": error(code),
            "error_message": None,
            "node_id": 1,
            "host": "127.0.0.1",
            "port": broker.port,
        }
        if hasattr(schema, "Coordinator"):
            coordinators = tuple(schema.Coordinator(key=key, **found) for key in request.coordinator_keys)
            return schema.FindCoordinatorResponse(throttle_time=ms(0), coordinators=coordinators)
        return schema.FindCoordinatorResponse(throttle_time=ms(0), **found)

    return answer


def _delete_answer(codes: list[int]) -> Any:
    def answer(schema: Any, request: Any) -> Any:
        code = codes.pop(0) if codes else 0
        return schema.DeleteGroupsResponse(
            throttle_time=ms(0),
            results=tuple(
                schema.DeletableGroupResult(group_id=group, error_code=error(code)) for group in request.groups_names
            ),
        )

    return answer


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE],
)
def test_a_coordinator_that_moves_or_loads_is_asked_again(fake_broker: MakeBroker, code: ErrorCode) -> None:
    broker = _broker(fake_broker, {ApiKey.DELETE_GROUPS: _delete_answer([code, code])})
    with _cluster(broker) as cluster:
        assert groups.delete_groups(cluster, ["a", "b", "a"]) == {"a": None, "b": None}
    assert [request.groups_names for request in broker.sent(ApiKey.DELETE_GROUPS)] == [("a", "b")] * 3
    assert len(broker.sent(ApiKey.FIND_COORDINATOR)) == 3


def test_a_coordinator_that_is_only_being_set_up_is_waited_for(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.DELETE_GROUPS: _delete_answer([])}, finding=[15, 15])
    with _cluster(broker) as cluster:
        assert groups.delete_groups(cluster, ["a"]) == {"a": None}
    assert len(broker.sent(ApiKey.FIND_COORDINATOR)) == 3


def test_waiting_for_a_coordinator_ends_with_its_error(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.DELETE_GROUPS: _delete_answer([])}, finding=[15] * 100)
    with _cluster(broker, default_api_timeout_ms="500") as cluster:
        result = groups.delete_groups(cluster, ["a"])["a"]
    assert isinstance(result, KafkaError)
    assert result.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_long_wait_says_once_what_it_waits_for(fake_broker: MakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = _broker(
        fake_broker, {ApiKey.DELETE_GROUPS: _delete_answer([])}, finding=[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 10_000
    )
    with _cluster(broker, default_api_timeout_ms="30000") as cluster:
        groups.delete_groups(cluster, ["g"])
    (message,) = caplog.messages
    assert message.startswith("Still waiting for the broker, for up to 27 s: The coordinator is not available")


def test_other_errors_are_each_groups_own_result_at_once(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.DELETE_GROUPS: _delete_answer([68])})
    with _cluster(broker) as cluster:
        result = groups.delete_groups(cluster, ["a"])["a"]
    assert isinstance(result, KafkaError)
    assert (result.code, result.message) == (ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    assert len(broker.sent(ApiKey.DELETE_GROUPS)) == 1


def test_older_brokers_find_one_coordinator_a_request(fake_broker: MakeBroker) -> None:
    broker = _broker(
        fake_broker, {ApiKey.DELETE_GROUPS: _delete_answer([])}, versions={ApiKey.FIND_COORDINATOR: (0, 3)}
    )
    with _cluster(broker) as cluster:
        assert groups.delete_groups(cluster, ["a", "b"]) == {"a": None, "b": None}
    assert [request.key for request in broker.sent(ApiKey.FIND_COORDINATOR)] == ["a", "b"]


def test_a_server_without_coordinators_is_told_in_plain_words(fake_broker: MakeBroker) -> None:
    broker = fake_broker({ApiKey.METADATA: None})
    broker.answers[ApiKey.METADATA] = metadata_answer(broker)
    with _cluster(broker) as cluster, pytest.raises(KafkaError, match="does not support FindCoordinator"):
        groups.delete_groups(cluster, ["a"])


def test_a_group_the_broker_says_nothing_about_is_an_error(fake_broker: MakeBroker) -> None:
    def answer(schema: Any, request: Any) -> Any:
        return schema.DeleteGroupsResponse(throttle_time=ms(0), results=())

    broker = _broker(fake_broker, {ApiKey.DELETE_GROUPS: answer})
    with _cluster(broker) as cluster:
        assert str(groups.delete_groups(cluster, ["a"])["a"]) == "The broker said nothing about 'a'"


def _offsets_answer(schema: Any, request: Any) -> Any:
    kinds = (("OffsetFetchResponsePartitions", "OffsetFetchResponseTopics"),) if hasattr(request, "groups") else ()
    partition_kind, topic_kind = kinds[0] if kinds else ("OffsetFetchResponsePartition", "OffsetFetchResponseTopic")
    partitions = tuple(
        getattr(schema, partition_kind)(
            partition_index=index, committed_offset=offset, committed_leader_epoch=7, metadata="", error_code=error(0)
        )
        for index, offset in ((0, 42), (1, -1))
    )
    topics = (getattr(schema, topic_kind)(name="t", partitions=partitions),)
    if not kinds:
        return schema.OffsetFetchResponse(throttle_time=ms(0), topics=topics, error_code=error(0))
    group = schema.OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=error(0))
    return schema.OffsetFetchResponse(throttle_time=ms(0), groups=(group,))


@pytest.mark.parametrize("highest", [10, 9, 8, 7, 5, 2])
def test_committed_offsets_come_by_topic_name_from_any_version(fake_broker: MakeBroker, highest: int) -> None:
    broker = _broker(fake_broker, {ApiKey.OFFSET_FETCH: _offsets_answer}, versions={ApiKey.OFFSET_FETCH: (1, highest)})
    with _cluster(broker) as cluster:
        epoch = 7 if highest >= 5 else -1
        assert groups.committed_offsets(cluster, "g") == {("t", 0): groups.CommittedOffset(42, epoch, "")}
    assert broker.requests[-1][1] == min(9, highest)


def _commit_answer(codes: list[int]) -> Any:
    def answer(schema: Any, request: Any) -> Any:
        code = codes.pop(0) if codes else 0
        return schema.OffsetCommitResponse(
            throttle_time=ms(0),
            topics=tuple(
                schema.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        schema.OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error(code))
                        for p in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    return answer


@pytest.mark.parametrize("highest", [10, 9, 6, 2])
def test_offsets_are_committed_as_nobodys_member(fake_broker: MakeBroker, highest: int) -> None:
    broker = _broker(
        fake_broker, {ApiKey.OFFSET_COMMIT: _commit_answer([16])}, versions={ApiKey.OFFSET_COMMIT: (2, highest)}
    )
    with _cluster(broker) as cluster:
        assert groups.commit_offsets(cluster, "g", {TopicPartition("t", 1): 5}) == {("t", 1): None}
    moved, request = broker.sent(ApiKey.OFFSET_COMMIT)
    assert moved == request
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    assert [p.committed_offset for p in request.topics[0].partitions] == [5]


def _list_answer(schema: Any, request: Any) -> Any:
    return schema.ListGroupsResponse(
        throttle_time=ms(0),
        error_code=error(0),
        groups=tuple(
            schema.ListedGroup(group_id=name, protocol_type=protocol, group_state="Empty", group_type=kind)
            for name, protocol, kind in (("s", "share", "share"), ("c", "consumer", "classic"))
        ),
    )


def test_groups_are_listed_with_kafkas_spelling_of_types(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.LIST_GROUPS: _list_answer})
    with _cluster(broker) as cluster:
        assert groups.list_groups(cluster) == [
            groups.GroupListing("c", "Classic", "Empty", "consumer"),
            groups.GroupListing("s", "Share", "Empty", "share"),
        ]
        assert [listing.group for listing in groups.list_groups(cluster, types=["Share"])] == ["s"]


def test_brokers_too_old_for_states_say_so(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.LIST_GROUPS: _list_answer}, versions={ApiKey.LIST_GROUPS: (0, 2)})
    with _cluster(broker) as cluster:
        assert {listing.state for listing in groups.list_groups(cluster)} == {"Unknown"}
        with pytest.raises(KafkaError, match="too old: it cannot list groups by state"):
            groups.list_groups(cluster, states=["Empty"])


def test_filters_of_transactions_need_a_broker_that_knows_them(fake_broker: MakeBroker) -> None:
    broker = _broker(fake_broker, {ApiKey.LIST_TRANSACTIONS: None}, versions={ApiKey.LIST_TRANSACTIONS: (0, 1)})
    with _cluster(broker) as cluster, pytest.raises(KafkaError, match="too old: it does not support this filter"):
        transactions.list_transactions(cluster, id_pattern="a.*")


def _assignment(*topics: tuple[str, list[int]]) -> bytes:
    parts = [struct.pack(">hi", 0, len(topics))]
    for name, partitions in topics:
        parts.append(
            struct.pack(f">h{len(name)}si{len(partitions)}i", len(name), name.encode(), len(partitions), *partitions)
        )
    return b"".join(parts) + struct.pack(">i", -1)


def test_assignments_of_classic_members_are_read() -> None:
    assert groups.parse_assignment(b"") == ()
    assert groups.parse_assignment(_assignment(("t", [2, 0]), ("a", [1]))) == (("a", 1), ("t", 0), ("t", 2))


@pytest.mark.parametrize("data", [b"\0", b"\0\0\0\0\0\x01", _assignment(("t", [1]))[:12], b"\0\0\x7f\xff\xff\xff"])
def test_assignments_that_are_none_are_errors_not_crashes(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        groups.parse_assignment(data)

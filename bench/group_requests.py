"""Requests of group members, as kio's entities, in the versions that the Java client of Kafka 4 sends."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from bench.raw import RawConnection
from moldau.errors import COORDINATOR_UNAVAILABLE, ErrorCode
from moldau.wire import messages
from moldau.wire.apis import ApiKey

_COMMIT_VERSION = 9
_BEAT_VERSION = 4

_FIND = messages.request_schema(ApiKey.FIND_COORDINATOR, 4)
_FETCH_OFFSETS = messages.request_schema(ApiKey.OFFSET_FETCH, 8)
_COMMIT = messages.request_schema(ApiKey.OFFSET_COMMIT, _COMMIT_VERSION)
_JOIN = messages.request_schema(ApiKey.JOIN_GROUP, 9)
_SYNC = messages.request_schema(ApiKey.SYNC_GROUP, 5)
_BEAT = messages.request_schema(ApiKey.HEARTBEAT, _BEAT_VERSION)
_LEAVE = messages.request_schema(ApiKey.LEAVE_GROUP, 5)
_CONSUMER_BEAT = messages.request_schema(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)

PROTOCOL_TYPE = "consumer"
ASSIGNOR = "range"
# Well above every measured time: no member is ever thrown out, none holds up a rebalance.
SESSION_TIMEOUT = messages.ms(45_000)
REBALANCE_TIMEOUT = messages.ms(60_000)

COORDINATOR_TIMEOUT_S = 30.0


def await_coordinator(connection: RawConnection, group_id: str) -> None:
    """Return once the coordinator of the group is there and has loaded it; the first call creates its topic."""
    find = _FIND.FindCoordinatorRequest(key_type=0, coordinator_keys=(group_id,))
    group = _FETCH_OFFSETS.OffsetFetchRequestGroup(group_id=group_id, topics=None)
    fetch = _FETCH_OFFSETS.OffsetFetchRequest(groups=(group,), require_stable=False)
    deadline = time.perf_counter() + COORDINATOR_TIMEOUT_S
    while True:
        code = connection.ask(find).coordinators[0].error_code or connection.ask(fetch).groups[0].error_code
        if code not in COORDINATOR_UNAVAILABLE or time.perf_counter() > deadline:
            break
        time.sleep(0.01)
    check(code)


def check(code: int) -> None:
    if code != ErrorCode.NONE:
        raise RuntimeError(f"the coordinator answered with {ErrorCode(code).name}")


def commit(group_id: str, member_id: str, generation: int, topic: str, partition: int) -> Any:
    """One offset of one partition; without a member id and with generation -1 of a group without members."""
    offset = _COMMIT.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    return _COMMIT.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        topics=(_COMMIT.OffsetCommitRequestTopic(name=topic, partitions=(offset,)),),
    )


def check_committed(frame: memoryview | bytes) -> None:
    _, response = messages.decode_response(ApiKey.OFFSET_COMMIT, _COMMIT_VERSION, bytes(frame))
    check(response.topics[0].partitions[0].error_code)


def check_beaten(frame: bytes) -> None:
    check(messages.decode_response(ApiKey.HEARTBEAT, _BEAT_VERSION, frame)[1].error_code)


def join(group_id: str, member_id: str, topic: str) -> Any:
    """A subscription is: version, topics, user data. The broker reads the topics."""
    name = topic.encode()
    subscription = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)
    return _JOIN.JoinGroupRequest(
        group_id=group_id,
        session_timeout=SESSION_TIMEOUT,
        rebalance_timeout=REBALANCE_TIMEOUT,
        member_id=member_id,
        group_instance_id=None,
        protocol_type=PROTOCOL_TYPE,
        protocols=(_JOIN.JoinGroupRequestProtocol(name=ASSIGNOR, metadata=subscription),),
        reason=None,
    )


def sync(group_id: str, member_id: str, generation: int, shares: Mapping[str, bytes]) -> Any:
    """The leader sends everybody's share, the others none; what is in a share is between the members."""
    return _SYNC.SyncGroupRequest(
        group_id=group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=None,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=ASSIGNOR,
        assignments=tuple(
            _SYNC.SyncGroupRequestAssignment(member_id=each, assignment=share) for each, share in shares.items()
        ),
    )


def heartbeat(group_id: str, member_id: str, generation: int) -> Any:
    return _BEAT.HeartbeatRequest(
        group_id=group_id, generation_id=generation, member_id=member_id, group_instance_id=None
    )


def leave(group_id: str, member_id: str) -> Any:
    member = _LEAVE.MemberIdentity(member_id=member_id, group_instance_id=None, reason=None)
    return _LEAVE.LeaveGroupRequest(group_id=group_id, members=(member,))


def consumer_heartbeat(
    group_id: str,
    member_id: str,
    epoch: int,
    *,
    topic: str | None = None,
    owned: Mapping[UUID, Sequence[int]] | None = None,
) -> Any:
    """The one request of KIP-848: with the topic to join, with what is owned when that has changed."""
    partitions = None
    if owned is not None:
        partitions = tuple(
            _CONSUMER_BEAT.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in owned.items()
        )
    return _CONSUMER_BEAT.ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=REBALANCE_TIMEOUT,
        subscribed_topic_names=(topic,) if topic is not None else None,
        subscribed_topic_regex=None,
        server_assignor=None,
        topic_partitions=partitions,
    )

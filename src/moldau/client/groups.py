"""Groups and the offsets they committed, as an administrator sees them: asked of each group's coordinator.

A group is Classic (JoinGroup and SyncGroup), Consumer (KIP-848), Share (KIP-932, see `share_groups`) or Streams.
The types answer to different describe requests; here one description has the fields of all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from moldau.client.cluster import ClusterClient, CoordinatorType, Node, by_topic
from moldau.client.connection import raise_error, to_error
from moldau.errors import COORDINATOR_UNAVAILABLE, ErrorCode, KafkaError, ProtocolError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, ms
from moldau.wire.primitives import MALFORMED, read_count, read_string
from moldau.wire.topic_partition import TopicPartition

CLASSIC = "Classic"
CONSUMER = "Consumer"
SHARE = "Share"
STREAMS = "Streams"
UNKNOWN = "Unknown"

CONSUMER_PROTOCOLS = ("consumer", "")  # the empty one: offsets were committed without any member

# Offsets are committed and asked for by topic name: the last versions that have it.
_COMMIT_BY_NAME_VERSION_MAX = 9
_FETCH_BY_NAME_VERSION_MAX = 9
_INT32 = struct.Struct(">i")

R = TypeVar("R")


class GroupListing(NamedTuple):
    group: str
    type: str
    state: str
    protocol: str


class Member(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    target_partitions: tuple[TopicPartition, ...] = ()
    epoch: int | None = None  # None: classic groups count generations, not members' epochs
    is_upgraded: bool | None = None  # whether a member of a Consumer group speaks that protocol


class GroupDescription(NamedTuple):
    group: str
    type: str
    state: str
    assignor: str
    coordinator: Node
    members: tuple[Member, ...]
    epoch: int | None = None
    target_epoch: int | None = None


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int  # -1: not known
    metadata: str | None = None


def list_groups(cluster: ClusterClient, *, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[GroupListing]:
    """The groups of all coordinators, by name; no states or no types means all of them."""
    wanted_states, wanted_types = tuple(states), tuple(types)
    answers = cluster.at_every_broker(
        ApiKey.LIST_GROUPS,
        lambda schema: schema.ListGroupsRequest(states_filter=wanted_states, types_filter=wanted_types),
    )
    listings = {
        group.group_id: GroupListing(
            group=group.group_id,
            type=getattr(group, "group_type", "").capitalize() or UNKNOWN,  # the wire has it in small letters
            state=getattr(group, "group_state", "") or UNKNOWN,
            protocol=group.protocol_type,
        )
        for answer in answers.values()
        for group in answer.groups
    }
    found = sorted(listings.values())
    # Older brokers know neither filter; their answers lack what would be filtered by, too.
    if wanted_states and any(listing.state == UNKNOWN for listing in found):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it cannot list groups by state")
    return [listing for listing in found if not wanted_types or listing.type in (*wanted_types, UNKNOWN)]


def describe_consumer_groups(cluster: ClusterClient, groups: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
    """Consumer groups of both protocols; which one a group uses is found out by asking."""

    def call(coordinator: Node, keys: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        described = _describe_new(cluster, coordinator, keys)
        older = [key for key in keys if key not in described or _has(described[key], _ASK_CLASSIC)]
        for key, classic in (_describe_classic(cluster, coordinator, older) if older else {}).items():
            # Of two that do not know the group, the newer API has the better words.
            if not (_has(classic, _NOT_FOUND) and _has(described.get(key), _NOT_FOUND)):
                described[key] = classic
        return described

    return cluster.at_coordinators(CoordinatorType.GROUP, groups, call)


_NOT_FOUND = (ErrorCode.GROUP_ID_NOT_FOUND,)
_ASK_CLASSIC = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def _has(result: object, codes: Sequence[ErrorCode]) -> bool:
    return isinstance(result, KafkaError) and result.code in codes


def _describe_new(
    cluster: ClusterClient, coordinator: Node, groups: Sequence[str]
) -> dict[str, GroupDescription | KafkaError]:
    connection = cluster.broker(coordinator.id)
    if connection.version_of(ApiKey.CONSUMER_GROUP_DESCRIBE) is None:
        return {}
    answer = connection.send(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda schema: schema.ConsumerGroupDescribeRequest(
            group_ids=tuple(groups), include_authorized_operations=False
        ),
    )
    return {group.group_id: described_group(group, CONSUMER, coordinator) for group in answer.groups}


def described_group(group: Any, kind: str, coordinator: Node) -> GroupDescription | KafkaError:
    """A group of ConsumerGroupDescribe or ShareGroupDescribe, which differ only in the fields of a member."""
    if group.error_code:
        return to_error(group.error_code, group.error_message)
    return GroupDescription(
        group=group.group_id,
        type=kind,
        state=group.group_state,
        assignor=group.assignor_name,
        coordinator=coordinator,
        members=tuple(
            Member(
                member_id=member.member_id,
                instance_id=getattr(member, "instance_id", None),
                client_id=member.client_id,
                host=member.client_host,
                partitions=_partitions(member.assignment),
                target_partitions=_partitions(getattr(member, "target_assignment", None)),
                epoch=member.member_epoch,
                is_upgraded={0: False, 1: True}.get(getattr(member, "member_type", -1)),
            )
            for member in group.members
        ),
        epoch=group.group_epoch,
        target_epoch=group.assignment_epoch,
    )


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    topics = () if assignment is None else assignment.topic_partitions
    return tuple(sorted(TopicPartition(topic.topic_name, index) for topic in topics for index in topic.partitions))


def _describe_classic(
    cluster: ClusterClient, coordinator: Node, groups: Sequence[str]
) -> dict[str, GroupDescription | KafkaError]:
    answer = cluster.broker(coordinator.id).send(
        ApiKey.DESCRIBE_GROUPS,
        lambda schema: schema.DescribeGroupsRequest(groups=tuple(groups), include_authorized_operations=False),
    )
    return {group.group_id: _classic_group(group, coordinator) for group in answer.groups}


def _classic_group(group: Any, coordinator: Node) -> GroupDescription | KafkaError:
    if group.error_code:
        return to_error(group.error_code, getattr(group, "error_message", None))
    if group.protocol_type not in CONSUMER_PROTOCOLS:
        return KafkaError(
            ErrorCode.INVALID_GROUP_ID, f"GroupId {group.group_id} is not a consumer group ({group.protocol_type})."
        )
    return GroupDescription(
        group=group.group_id,
        type=CLASSIC,
        state=group.group_state,
        assignor=group.protocol_data,
        coordinator=coordinator,
        members=tuple(
            Member(
                member_id=member.member_id,
                instance_id=getattr(member, "group_instance_id", None),
                client_id=member.client_id,
                host=member.client_host,
                partitions=parse_assignment(member.member_assignment),
            )
            for member in group.members
        ),
    )


def parse_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a classic consumer's assignment, which the clients write and the broker only keeps."""
    if not data:
        return ()
    view = memoryview(data)
    partitions: list[TopicPartition] = []
    try:
        topics, pos = read_count(view, 2, 6)  # behind two bytes of version
        for _ in range(topics):
            topic, pos = read_string(view, pos)
            count, pos = read_count(view, pos, 4)
            partitions += [TopicPartition(str(topic), _INT32.unpack_from(view, pos + 4 * i)[0]) for i in range(count)]
            pos += 4 * count
    except MALFORMED as error:
        raise ProtocolError(f"malformed assignment of a group member: {error}") from error
    return tuple(sorted(partitions))


def committed_offsets(cluster: ClusterClient, group: str) -> dict[TopicPartition, CommittedOffset]:
    """Everything the group has committed."""

    def build(schema: Schema) -> Any:
        if not hasattr(schema, "OffsetFetchRequestGroup"):  # before version 8: one group a request
            return schema.OffsetFetchRequest(group_id=group, topics=None, require_stable=False)
        wanted = schema.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=None)
        return schema.OffsetFetchRequest(groups=(wanted,), require_stable=False)

    def call(coordinator: Node) -> dict[TopicPartition, CommittedOffset]:
        connection = cluster.broker(coordinator.id)
        answer = connection.send(ApiKey.OFFSET_FETCH, build, max_version=_FETCH_BY_NAME_VERSION_MAX)
        (fetched,) = getattr(answer, "groups", (answer,))
        raise_error(fetched.error_code)
        offsets = {}
        for topic in fetched.topics:
            for p in topic.partitions:
                raise_error(p.error_code)
                epoch = getattr(p, "committed_leader_epoch", -1)
                partition = TopicPartition(str(topic.name), p.partition_index)
                offsets[partition] = CommittedOffset(p.committed_offset, epoch, p.metadata)
        return {tp: committed for tp, committed in offsets.items() if committed.offset >= 0}

    return at_coordinator(cluster, group, call)


def commit_offsets(
    cluster: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, KafkaError | None]:
    """Set the offsets of a group without members: no generation, no member id."""

    def build(schema: Schema) -> Any:
        return schema.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time=ms(-1),
            topics=tuple(
                schema.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=tuple(
                        schema.OffsetCommitRequestPartition(
                            partition_index=index,
                            committed_offset=offset,
                            committed_leader_epoch=-1,
                            committed_metadata="",
                        )
                        for index, offset in partitions
                    ),
                )
                for topic, partitions in by_topic(offsets)
            ),
        )

    def call(coordinator: Node) -> dict[TopicPartition, KafkaError | None]:
        connection = cluster.broker(coordinator.id)
        answer = connection.send(ApiKey.OFFSET_COMMIT, build, max_version=_COMMIT_BY_NAME_VERSION_MAX)
        results = {
            TopicPartition(topic.name, p.partition_index): to_error(p.error_code) if p.error_code else None
            for topic in answer.topics
            for p in topic.partitions
        }
        _raise_coordinator_error(results.values())
        return results

    return at_coordinator(cluster, group, call)


def delete_offsets(
    cluster: ClusterClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError | None]:
    """Forget what the group committed for these partitions; what concerns the group as a whole is raised."""
    topics = by_topic(dict.fromkeys(partitions))

    def call(coordinator: Node) -> dict[TopicPartition, KafkaError | None]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.OFFSET_DELETE,
            lambda schema: schema.OffsetDeleteRequest(
                group_id=group,
                topics=tuple(
                    schema.OffsetDeleteRequestTopic(
                        name=topic,
                        partitions=tuple(
                            schema.OffsetDeleteRequestPartition(partition_index=index) for index, _ in indexes
                        ),
                    )
                    for topic, indexes in topics
                ),
            ),
        )
        raise_error(answer.error_code)
        return {
            TopicPartition(topic.name, p.partition_index): to_error(p.error_code) if p.error_code else None
            for topic in answer.topics
            for p in topic.partitions
        }

    return at_coordinator(cluster, group, call)


def delete_groups(cluster: ClusterClient, groups: Iterable[str]) -> dict[str, KafkaError | None]:
    """Groups of any type; each has its own result."""

    def call(coordinator: Node, keys: Sequence[str]) -> dict[str, KafkaError | None]:
        answer = cluster.broker(coordinator.id).send(
            ApiKey.DELETE_GROUPS, lambda schema: schema.DeleteGroupsRequest(groups_names=tuple(keys))
        )
        return {
            result.group_id: to_error(result.error_code) if result.error_code else None for result in answer.results
        }

    return cluster.at_coordinators(CoordinatorType.GROUP, groups, call)


def at_coordinator(cluster: ClusterClient, group: str, call: Callable[[Node], R]) -> R:
    """What `call` returns at the group's coordinator; what it raises as an error of the coordinator is retried."""
    result = cluster.at_coordinators(CoordinatorType.GROUP, [group], partial(_caught, call))[group]
    if isinstance(result, KafkaError):
        raise result
    return result


def _caught(call: Callable[[Node], R], coordinator: Node, keys: Sequence[str]) -> dict[str, R | KafkaError]:
    try:
        return dict.fromkeys(keys, call(coordinator))
    except KafkaError as error:
        return dict.fromkeys(keys, error)


def _raise_coordinator_error(results: Iterable[KafkaError | None]) -> None:
    """A coordinator that has moved says so of every partition; the group has to be asked for elsewhere."""
    for error in results:
        if error is not None and error.code in COORDINATOR_UNAVAILABLE:
            raise error

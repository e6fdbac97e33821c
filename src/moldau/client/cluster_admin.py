"""What an administrator asks of a cluster of several brokers: who is in it, who leads what, which replicas move.

The same manner as `admin`: plain calls, plain answers, an error raised, or the value of one thing among many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from moldau.client.cluster import ClusterClient, by_topic
from moldau.client.connection import raise_error, to_error
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.constants import METADATA_TOPIC, ElectionType
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID


class Reassignment(NamedTuple):
    replicas: tuple[int, ...]  # those that are added are among them
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Member(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    members: tuple[Member, ...]


class QuorumReplica(NamedTuple):
    id: int
    directory_id: UUID
    log_end_offset: int
    last_fetch_ms: int  # -1: not known
    last_caught_up_ms: int


class Quorum(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[tuple[str, str, int], ...]]  # node → (name, host, port) of its listeners


def describe_cluster(cluster: ClusterClient, *, include_fenced: bool = False) -> ClusterDescription:
    """The brokers that are alive; with `include_fenced` all that are registered."""
    if include_fenced and (cluster.any_broker().version_of(ApiKey.DESCRIBE_CLUSTER) or 0) < 2:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it does not report fenced brokers")

    def build(schema: Schema) -> Any:
        return schema.DescribeClusterRequest(
            include_cluster_authorized_operations=False,
            endpoint_type=1,  # brokers, not controllers
            include_fenced_brokers=include_fenced,
        )

    answer = cluster.at_any(ApiKey.DESCRIBE_CLUSTER, build)
    raise_error(answer.error_code, answer.error_message)
    return ClusterDescription(
        answer.cluster_id,
        answer.controller_id,
        tuple(
            Member(each.broker_id, each.host, each.port, each.rack, getattr(each, "is_fenced", False))
            for each in sorted(answer.brokers, key=lambda each: int(each.broker_id))
        ),
    )


def unregister_broker(cluster: ClusterClient, broker_id: int) -> None:
    answer = cluster.at_controller(
        ApiKey.UNREGISTER_BROKER,
        lambda schema: schema.UnregisterBrokerRequest(broker_id=broker_id),
        lambda answer: [answer.error_code],
    )
    raise_error(answer.error_code, answer.error_message)


def describe_quorum(cluster: ClusterClient) -> Quorum:
    """The brokers that keep the metadata, and how far each has read it."""

    def build(schema: Schema) -> Any:
        partitions = (schema.PartitionData(partition_index=0),)
        return schema.DescribeQuorumRequest(
            topics=(schema.TopicData(topic_name=METADATA_TOPIC, partitions=partitions),)
        )

    def codes(answer: Any) -> list[int]:
        return [answer.error_code, *(p.error_code for topic in answer.topics for p in topic.partitions)]

    answer = cluster.at_controller(ApiKey.DESCRIBE_QUORUM, build, codes)
    raise_error(answer.error_code, getattr(answer, "error_message", None))
    ((found,),) = (topic.partitions for topic in answer.topics)
    raise_error(found.error_code, getattr(found, "error_message", None))
    return Quorum(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        tuple(map(_quorum_replica, found.current_voters)),
        tuple(map(_quorum_replica, found.observers)),
        {
            node.node_id: tuple((each.name, each.host, each.port) for each in node.listeners)
            for node in getattr(answer, "nodes", ())
        },
    )


def _quorum_replica(state: Any) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        getattr(state, "replica_directory_id", None) or ZERO_UUID,
        state.log_end_offset,
        getattr(state, "last_fetch_timestamp", -1),
        getattr(state, "last_caught_up_timestamp", -1),
    )


def elect_leaders(
    cluster: ClusterClient, election_type: ElectionType, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, KafkaError | None]:
    """None asks for every partition; what had nothing to do answers ELECTION_NOT_NEEDED, or (of all) nothing."""

    def build(schema: Schema) -> Any:
        wanted = None
        if partitions is not None:
            wanted = tuple(
                schema.TopicPartitions(topic=topic, partitions=tuple(index for index, _ in found))
                for topic, found in by_topic(dict.fromkeys(partitions))
            )
        return schema.ElectLeadersRequest(
            election_type=election_type, topic_partitions=wanted, timeout=_timeout(cluster)
        )

    version = cluster.any_broker().version_of(ApiKey.ELECT_LEADERS)
    if version == 0 and election_type is not ElectionType.PREFERRED:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it does not support unclean elections")
    answer = cluster.at_controller(ApiKey.ELECT_LEADERS, build, lambda a: [getattr(a, "error_code", 0)])
    raise_error(getattr(answer, "error_code", 0))
    return {
        TopicPartition(topic.topic, p.partition_id): to_error(p.error_code, p.error_message) if p.error_code else None
        for topic in answer.replica_election_results
        for p in topic.partition_result
    }


def list_reassignments(
    cluster: ClusterClient, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Reassignment]:
    """The current reassignments of `partitions`, or all of them."""

    def build(schema: Schema) -> Any:
        wanted = None
        if partitions is not None:
            wanted = tuple(
                schema.ListPartitionReassignmentsTopics(name=topic, partition_indexes=tuple(i for i, _ in found))
                for topic, found in by_topic(dict.fromkeys(partitions))
            )
        return schema.ListPartitionReassignmentsRequest(timeout=_timeout(cluster), topics=wanted)

    answer = cluster.at_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, build, lambda a: [a.error_code])
    raise_error(answer.error_code, answer.error_message)
    return {
        TopicPartition(topic.name, p.partition_index): Reassignment(
            tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
        )
        for topic in answer.topics
        for p in topic.partitions
    }


def alter_reassignments(
    cluster: ClusterClient,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
) -> dict[TopicPartition, KafkaError]:
    """Begin to move partitions to these replicas (None cancels); answers those that were refused."""
    version = cluster.any_broker().version_of(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    if version == 0 and not allow_replication_factor_change:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it cannot reject changes of the replication factor"
        )
    answer = cluster.at_controller(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        partial(_alter_request, targets=targets, allow=allow_replication_factor_change, cluster=cluster),
        lambda a: [a.error_code],
    )
    raise_error(answer.error_code, answer.error_message)
    return {
        TopicPartition(topic.name, p.partition_index): to_error(p.error_code, p.error_message)
        for topic in answer.responses
        for p in topic.partitions
        if p.error_code
    }


def _alter_request(
    schema: Schema, *, targets: Mapping[TopicPartition, Sequence[int] | None], allow: bool, cluster: ClusterClient
) -> Any:
    return schema.AlterPartitionReassignmentsRequest(
        timeout=_timeout(cluster),
        allow_replication_factor_change=allow,
        topics=tuple(
            schema.ReassignableTopic(
                name=topic,
                partitions=tuple(
                    schema.ReassignablePartition(
                        partition_index=index, replicas=None if replicas is None else tuple(replicas)
                    )
                    for index, replicas in found
                ),
            )
            for topic, found in by_topic(targets)
        ),
    )


def alter_replica_log_dirs(
    cluster: ClusterClient, paths: Mapping[tuple[str, int, int], str]
) -> list[tuple[str, int, int]]:
    """Move replicas (topic, partition, broker) to log directories; answers those that are on their way.

    A broker that does not have the replica yet remembers where to put it, and has to be asked again.
    """
    started = []
    for broker in sorted({broker for _, _, broker in paths}):
        folders: dict[str, dict[TopicPartition, None]] = {}
        for (topic, index, where), path in paths.items():
            if where == broker:
                folders.setdefault(path, {})[TopicPartition(topic, index)] = None
        answer = cluster.broker(broker).send(
            ApiKey.ALTER_REPLICA_LOG_DIRS, partial(_alter_log_dirs_request, folders=folders)
        )
        for topic in answer.results:
            for p in topic.partitions:
                if p.error_code == ErrorCode.REPLICA_NOT_AVAILABLE:
                    continue
                raise_error(p.error_code, f"Failed to alter dir for {topic.topic_name}-{p.partition_index}-{broker}")
                started.append((topic.topic_name, p.partition_index, broker))
    return started


def _alter_log_dirs_request(schema: Schema, *, folders: Mapping[str, Mapping[TopicPartition, None]]) -> Any:
    return schema.AlterReplicaLogDirsRequest(
        dirs=tuple(
            schema.AlterReplicaLogDir(
                path=path,
                topics=tuple(
                    schema.AlterReplicaLogDirTopic(name=topic, partitions=tuple(index for index, _ in found))
                    for topic, found in by_topic(partitions)
                ),
            )
            for path, partitions in folders.items()
        )
    )


def _timeout(cluster: ClusterClient) -> Any:
    return ms(cluster.config.request_timeout_ms)

"""What an administrator asks of a cluster, as plain calls with plain answers.

One function per question: it names the fields of all protocol versions, and the agreed version picks its own.
An error in an answer is raised, except where one call asks about many things: there it is the thing's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from moldau.client.cluster import ClusterClient, PartitionMetadata, TopicMetadata, by_topic
from moldau.client.connection import Build, Connection, raise_error, to_error
from moldau.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.constants import MAX_TIMESTAMP, IsolationLevel, ResourceType
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

_EPOCH_ENDS_VERSION_MIN = 3  # earlier versions are for brokers alone
_DESCRIBE_PARTITIONS_MAX = 2000  # per answer; Kafka's default, the broker may cut lower


class Resource(NamedTuple):
    type: ResourceType
    name: str


class OffsetInfo(NamedTuple):
    offset: int  # -1: no record that late
    timestamp_ms: int
    leader_epoch: int


class LogDirPartition(NamedTuple):
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDir(NamedTuple):
    path: str
    error: ErrorCode
    partitions: tuple[LogDirPartition, ...]
    total_bytes: int
    usable_bytes: int


def create_topic(
    cluster: ClusterClient,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> UUID:
    """Returns the new topic's id (zero from brokers that give none)."""

    def build(schema: Schema) -> Any:
        topic = schema.CreatableTopic(
            name=name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            assignments=tuple(
                schema.CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(brokers))
                for index, brokers in (assignments or {}).items()
            ),
            configs=tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
        )
        return schema.CreateTopicsRequest(topics=(topic,), timeout=_timeout(cluster), validate_only=False)

    answer = cluster.at_controller(ApiKey.CREATE_TOPICS, build, lambda a: (t.error_code for t in a.topics))
    (result,) = answer.topics
    raise_error(result.error_code, result.error_message)
    return getattr(result, "topic_id", None) or ZERO_UUID


def create_partitions(
    cluster: ClusterClient,
    counts: Mapping[str, int],
    assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
) -> None:
    """Grow each topic to its count; `assignments` name the replicas of the new partitions only."""

    def assigned(schema: Schema, topic: str) -> tuple[Any, ...] | None:
        if assignments is None:
            return None
        return tuple(schema.CreatePartitionsAssignment(broker_ids=tuple(ids)) for ids in assignments[topic])

    def build(schema: Schema) -> Any:
        return schema.CreatePartitionsRequest(
            topics=tuple(
                schema.CreatePartitionsTopic(name=name, count=count, assignments=assigned(schema, name))
                for name, count in counts.items()
            ),
            timeout=_timeout(cluster),
            validate_only=False,
        )

    answer = cluster.at_controller(
        ApiKey.CREATE_PARTITIONS, build, lambda a: (result.error_code for result in a.results)
    )
    for result in answer.results:
        raise_error(result.error_code, result.error_message)


def delete_topics(cluster: ClusterClient, names: Sequence[str]) -> None:
    def build(schema: Schema) -> Any:
        if hasattr(schema, "DeleteTopicState"):  # version 6 and up: by name or by id
            topics = tuple(schema.DeleteTopicState(name=name, topic_id=None) for name in names)
            return schema.DeleteTopicsRequest(topics=topics, timeout=_timeout(cluster))
        return schema.DeleteTopicsRequest(topic_names=tuple(names), timeout=_timeout(cluster))

    answer = cluster.at_controller(ApiKey.DELETE_TOPICS, build, lambda a: (result.error_code for result in a.responses))
    for result in answer.responses:
        raise_error(result.error_code, getattr(result, "error_message", None))


def describe_topics(
    cluster: ClusterClient, names: Sequence[str], *, partitions_per_answer: int = _DESCRIBE_PARTITIONS_MAX
) -> list[TopicMetadata]:
    """With the eligible leader replicas where the broker knows them; the first error is raised."""
    if cluster.any_broker().version_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS) is None:
        found = cluster.metadata(names).topics
        topics = [found[name] for name in names if name in found]
    else:
        topics = _describe_topic_partitions(cluster, sorted(names), partitions_per_answer)
    for topic in topics:
        raise_error(topic.error)
    return topics


def _describe_topic_partitions(cluster: ClusterClient, names: Sequence[str], limit: int) -> list[TopicMetadata]:
    topics: dict[str, TopicMetadata] = {}
    cursor: tuple[str, int] | None = None
    while True:
        answer = cluster.at_any(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            partial(_describe_request, names=names, limit=limit, cursor=cursor),
        )
        for entry in answer.topics:
            page = _described_topic(entry)
            earlier = topics.get(page.name)
            partitions = (earlier.partitions if earlier else ()) + page.partitions
            topics[page.name] = page._replace(partitions=partitions)
        if answer.next_cursor is None:
            return list(topics.values())
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


def _describe_request(schema: Schema, *, names: Sequence[str], limit: int, cursor: tuple[str, int] | None) -> Any:
    start = None if cursor is None else schema.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return schema.DescribeTopicPartitionsRequest(
        topics=tuple(schema.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=start,
    )


def _described_topic(topic: Any) -> TopicMetadata:
    return TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id or ZERO_UUID,
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionMetadata(
                partition=partition.partition_index,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                isr=tuple(partition.isr_nodes),
                offline=tuple(partition.offline_replicas),
                elr=_optional_ids(partition.eligible_leader_replicas),
                last_known_elr=_optional_ids(partition.last_known_elr),
            )
            for partition in topic.partitions
        ),
        error=ErrorCode(topic.error_code),
    )


def describe_configs(
    cluster: ClusterClient, resources: Sequence[Resource], *, synonyms: bool = False
) -> dict[Resource, list[ConfigEntry]]:
    """Every key of each resource. A broker's own configuration is asked of that broker."""
    described: dict[Resource, list[ConfigEntry]] = {}
    for send, group in _by_broker(cluster, resources):
        answer = send(ApiKey.DESCRIBE_CONFIGS, partial(_describe_configs_request, resources=group, synonyms=synonyms))
        for result in answer.results:
            raise_error(result.error_code, result.error_message)
            resource = Resource(ResourceType(result.resource_type), result.resource_name)
            described[resource] = [_config_entry(entry) for entry in result.configs]
    return described


def _describe_configs_request(schema: Schema, *, resources: Sequence[Resource], synonyms: bool) -> Any:
    return schema.DescribeConfigsRequest(
        resources=tuple(
            schema.DescribeConfigsResource(
                resource_type=resource.type, resource_name=resource.name, configuration_keys=None
            )
            for resource in resources
        ),
        include_synonyms=synonyms,
        include_documentation=False,
    )


def alter_configs(
    cluster: ClusterClient, resource: Resource, *, set_values: Mapping[str, str], delete: Iterable[str] = ()
) -> None:
    """Change only the named keys (IncrementalAlterConfigs); the rest of the configuration stays."""
    changes = [(name, 1, None) for name in delete] + [(name, 0, value) for name, value in set_values.items()]
    alter_many_configs(cluster, {resource: changes})


def alter_many_configs(
    cluster: ClusterClient, changes: Mapping[Resource, Sequence[tuple[str, int, str | None]]]
) -> None:
    """For each resource (key, operation, value), with the protocol's operations: 0 sets, 1 deletes."""
    for send, group in _by_broker(cluster, list(changes)):
        answer = send(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            partial(_alter_configs_request, changes={resource: changes[resource] for resource in group}),
        )
        for result in answer.responses:
            raise_error(result.error_code, result.error_message)


def _alter_configs_request(schema: Schema, *, changes: Mapping[Resource, Sequence[tuple[str, int, str | None]]]) -> Any:
    return schema.IncrementalAlterConfigsRequest(
        resources=tuple(
            schema.AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=tuple(
                    schema.AlterableConfig(name=name, config_operation=operation, value=value)
                    for name, operation, value in of_resource
                ),
            )
            for resource, of_resource in changes.items()
        ),
        validate_only=False,
    )


def list_config_resources(cluster: ClusterClient, kind: ResourceType) -> list[str]:
    """The names of all that have a configuration of their own."""
    answer = cluster.at_any(
        ApiKey.LIST_CONFIG_RESOURCES, lambda schema: schema.ListConfigResourcesRequest(resource_types=(int(kind),))
    )
    raise_error(answer.error_code)
    return [each.resource_name for each in answer.config_resources if each.resource_type == kind]


def _by_broker(
    cluster: ClusterClient, resources: Sequence[Resource]
) -> list[tuple[Callable[[int, Build], Any], list[Resource]]]:
    """How to ask for which resources: a broker's own configuration is that broker's, the rest is anybody's."""
    groups: dict[int | None, list[Resource]] = {}
    for resource in resources:
        is_one_broker = resource.type is ResourceType.BROKER and resource.name != ""
        groups.setdefault(int(resource.name) if is_one_broker else None, []).append(resource)
    return [(cluster.at_any if node is None else cluster.broker(node).send, group) for node, group in groups.items()]


def _config_entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=ConfigSource(entry.config_source),
        is_sensitive=entry.is_sensitive,
        read_only=entry.read_only,
        synonyms=tuple(ConfigSynonym(s.name, s.value, ConfigSource(s.source)) for s in entry.synonyms),
    )


def list_offsets(
    cluster: ClusterClient,
    timestamps: Mapping[TopicPartition, int],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetInfo | KafkaError]:
    """For each partition the first offset at or after a timestamp, or LATEST, EARLIEST, MAX_TIMESTAMP.

    To a reader of what is committed, LATEST is the last stable offset.
    """

    def call(
        connection: Connection, part: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetInfo | KafkaError]:
        if MAX_TIMESTAMP in part.values() and (connection.version_of(ApiKey.LIST_OFFSETS) or 0) < 7:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it cannot look up the maximum timestamp"
            )
        answer = connection.send(
            ApiKey.LIST_OFFSETS,
            lambda schema: schema.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                timeout=_timeout(cluster),
                topics=tuple(
                    schema.ListOffsetsTopic(
                        name=topic,
                        partitions=tuple(
                            schema.ListOffsetsPartition(
                                partition_index=index, current_leader_epoch=-1, timestamp=timestamp
                            )
                            for index, timestamp in partitions
                        ),
                    )
                    for topic, partitions in by_topic(part)
                ),
            ),
        )
        return {
            TopicPartition(topic.name, p.partition_index): to_error(p.error_code)
            if p.error_code
            else OffsetInfo(p.offset, p.timestamp, getattr(p, "leader_epoch", -1))
            for topic in answer.topics
            for p in topic.partitions
        }

    return cluster.at_leaders(timestamps, call)


def epoch_end_offsets(
    cluster: ClusterClient, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError]:
    """Where each partition's log has the end of what was written up to a leader epoch; -1 where that is not known."""

    def call(connection: Connection, part: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KafkaError]:
        if (connection.version_of(ApiKey.OFFSET_FOR_LEADER_EPOCH) or 0) < _EPOCH_ENDS_VERSION_MIN:
            return dict.fromkeys(part, -1)
        answer = connection.send(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            lambda schema: schema.OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=tuple(
                    schema.OffsetForLeaderTopic(
                        topic=topic,
                        partitions=tuple(
                            schema.OffsetForLeaderPartition(
                                partition=index, current_leader_epoch=-1, leader_epoch=epoch
                            )
                            for index, epoch in partitions
                        ),
                    )
                    for topic, partitions in by_topic(part)
                ),
            ),
        )
        return {
            TopicPartition(topic.topic, p.partition): to_error(p.error_code) if p.error_code else p.end_offset
            for topic in answer.topics
            for p in topic.partitions
        }

    return cluster.at_leaders(epochs, call)


def delete_records(
    cluster: ClusterClient, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError]:
    """Forget the records before each offset (-1: all of them); answers the new low watermarks."""

    def call(connection: Connection, part: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | KafkaError]:
        answer = connection.send(
            ApiKey.DELETE_RECORDS,
            lambda schema: schema.DeleteRecordsRequest(
                timeout=_timeout(cluster),
                topics=tuple(
                    schema.DeleteRecordsTopic(
                        name=topic,
                        partitions=tuple(
                            schema.DeleteRecordsPartition(partition_index=index, offset=offset)
                            for index, offset in partitions
                        ),
                    )
                    for topic, partitions in by_topic(part)
                ),
            ),
        )
        return {
            TopicPartition(topic.name, p.partition_index): to_error(p.error_code) if p.error_code else p.low_watermark
            for topic in answer.topics
            for p in topic.partitions
        }

    return cluster.at_leaders(offsets, call)


def describe_log_dirs(cluster: ClusterClient, broker_id: int) -> list[LogDir]:
    answer = cluster.broker(broker_id).send(
        ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None)
    )
    raise_error(getattr(answer, "error_code", 0))
    return [
        LogDir(
            path=result.log_dir,
            error=ErrorCode(result.error_code),
            partitions=tuple(
                LogDirPartition(t.name, p.partition_index, p.partition_size, p.offset_lag, p.is_future_key)
                for t in result.topics
                for p in t.partitions
            ),
            total_bytes=getattr(result, "total_bytes", -1),
            usable_bytes=getattr(result, "usable_bytes", -1),
        )
        for result in answer.results
    ]


def _optional_ids(ids: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)


def _timeout(cluster: ClusterClient) -> Any:
    return ms(cluster.config.request_timeout_ms)

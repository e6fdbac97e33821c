"""CreateTopics (19), DeleteTopics (20), DeleteRecords (21) and CreatePartitions (37).

`moldau.metadata.topics` decides what is allowed; here requests become plans, and their outcomes become responses.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.metadata_changes import Outcomes, Planner, change_each, error_of, repeated
from moldau.broker.turns import Work
from moldau.config.describe import describe_topic
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord, PartitionRecord, Record, TopicRecord
from moldau.metadata.topics import (
    Assignment,
    check_partition_count,
    is_internal,
    plan_create_partitions,
    plan_create_topic,
    plan_delete_topic,
)
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.messages import Schema, error, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.broker.replicas.partition import Partition


class CreatesTopics(
    needs.HasEnvironment, needs.HasTurns, needs.HasLocalBroker, needs.HasMetadata, needs.HasController, Protocol
):
    """For new topics, which are also created on first use."""


class Broker(CreatesTopics, needs.HasThreads, needs.HasPartitions, needs.HasLogs, Protocol):
    """What these handlers use."""


logger = logging.getLogger(__name__)

_CONFIGS_VERSION_MIN = 5
_DELETION_DISABLED_VERSION_MIN = 3
_DELETE_BY_ID_VERSION_MIN = 6


class NewTopic(NamedTuple):
    """A topic to create, by request or on first use; -1 means the broker's default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Assignment] = ()
    configs: Mapping[str, str | None] = {}


async def create_topics(
    broker: CreatesTopics, wanted: Sequence[NewTopic], *, validate_only: bool = False
) -> Outcomes[str]:
    """Creates topics of distinct names; each outcome is a topic's records or its refusal."""
    try:
        check_partition_count(sum(_partition_count(broker, topic) for topic in wanted))
    except KafkaError as refusal:
        return {topic.name: refusal for topic in wanted}
    planners = {topic.name: partial(_plan_topic, broker=broker, topic=topic) for topic in wanted}
    outcomes = await change_each(broker, planners, validate_only=validate_only)
    if not validate_only:
        for name, outcome in outcomes.items():
            _warn_if_short(name, outcome)
    return outcomes


def _warn_if_short(name: str, outcome: list[Record] | KafkaError) -> None:
    records = () if isinstance(outcome, KafkaError) else outcome
    short = next((one for one in records if isinstance(one, PartitionRecord) and one.target_factor), None)
    if short is not None:
        logger.warning(
            "a state topic has fewer replicas than configured, because there are too few brokers; "
            "it gets more when brokers join",
            extra={"topic": name, "replicas": len(short.replicas), "configured": short.target_factor},
        )


def _partition_count(broker: CreatesTopics, topic: NewTopic) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return broker.local.config.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)


def _plan_topic(image: MetadataImage, *, broker: CreatesTopics, topic: NewTopic) -> list[Record]:
    if topic.name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    return plan_create_topic(
        image,
        topic.name,
        topic_id=broker.environment.new_uuid(),
        broker_config=broker.local.config,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=topic.assignments,
        configs=topic.configs,
    )


# -- CreateTopics


async def handle_create_topics(broker: Broker, context: RequestContext, request: Any) -> Any:
    duplicates = repeated(topic.name for topic in request.topics)
    wanted = [_new_topic(topic) async for topic in broker.turns.each(request.topics) if topic.name not in duplicates]
    outcomes = await create_topics(broker, wanted, validate_only=request.validate_only)
    outcomes.update(dict.fromkeys(duplicates, _duplicate_name()))
    names = dict.fromkeys(topic.name for topic in request.topics)
    schema = context.schema
    created = [
        _created(broker, schema, context.version, name, outcomes[name]) async for name in broker.turns.each(names)
    ]
    return schema.CreateTopicsResponse(throttle_time=ms(0), topics=tuple(created))


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )


def _created(broker: Broker, schema: Schema, version: int, name: str, outcome: list[Record] | KafkaError) -> Any:
    if isinstance(outcome, KafkaError):
        return schema.CreatableTopicResult(
            name=name,
            topic_id=None,
            error_code=error(outcome.code),
            error_message=outcome.message,
            configs=(),
        )
    (topic_id,) = (record.topic_id for record in outcome if isinstance(record, TopicRecord))
    partitions = [record for record in outcome if isinstance(record, PartitionRecord)]
    overrides = {record.key: record.value or "" for record in outcome if isinstance(record, ConfigRecord)}
    return schema.CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=error(ErrorCode.NONE),
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=_topic_configs(broker, schema, overrides) if version >= _CONFIGS_VERSION_MIN else (),
    )


def _topic_configs(broker: Broker, schema: Schema, overrides: Mapping[str, str]) -> tuple[Any, ...]:
    return tuple(
        schema.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=int(entry.source),
            is_sensitive=entry.is_sensitive,
        )
        for entry in describe_topic(overrides, broker.local.config)
    )


# -- DeleteTopics


class _Target(NamedTuple):
    """A topic as a request names it, by name or by id; as the answer does, by both where both are known."""

    name: str | None
    topic_id: uuid.UUID | None


async def handle_delete_topics(broker: Broker, context: RequestContext, request: Any) -> Any:
    version = context.version
    if version >= _DELETE_BY_ID_VERSION_MIN:
        targets = [_Target(topic.name, topic.topic_id) for topic in request.topics]
    else:
        targets = [_Target(name, None) for name in request.topic_names]
    if broker.local.config.delete_topic_enable:
        refusals = await _delete(broker, targets)
    else:
        code = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if version >= _DELETION_DISABLED_VERSION_MIN
            else ErrorCode.INVALID_REQUEST
        )
        refusals = dict.fromkeys(targets, KafkaError(code, "Topic deletion is disabled: delete.topic.enable=false."))
    schema = context.schema
    responses = [
        schema.DeletableTopicResult(
            name=target.name,
            topic_id=target.topic_id,
            error_code=error_of(refusal),
            error_message=refusal.message if refusal else None,
        )
        async for target, refusal in broker.turns.each(refusals.items())
    ]
    return schema.DeleteTopicsResponse(throttle_time=ms(0), responses=tuple(responses))


async def _delete(broker: Broker, targets: Sequence[_Target]) -> dict[_Target, KafkaError | None]:
    refusals: dict[_Target, KafkaError | None] = {}
    duplicates = repeated(targets)
    image = broker.metadata.image
    resolved = {
        target: _resolve(image, target) async for target in broker.turns.each(targets) if target not in duplicates
    }
    clashing = repeated(resolved.values())
    planners: dict[_Target, Planner] = {}
    async for target in broker.turns.each(dict.fromkeys(targets)):
        answer = resolved.get(target, target)
        problem = _problem(target, target in duplicates, answer in clashing)
        if problem is not None:
            refusals[answer] = KafkaError(ErrorCode.INVALID_REQUEST, problem)
        else:
            refusals[answer] = None
            planners[answer] = partial(plan_delete_topic, topic=target.name or target.topic_id or "")
    outcomes = await change_each(broker, planners)
    return refusals | {answer: out for answer, out in outcomes.items() if isinstance(out, KafkaError)}


def _resolve(image: MetadataImage, target: _Target) -> _Target:
    if target.name is not None:
        topic = image.topics.get(target.name) if target.topic_id is None else None
    else:
        topic = image.topic_by_id(target.topic_id) if target.topic_id is not None else None
    return _Target(topic.name, topic.topic_id) if topic is not None else target


def _problem(target: _Target, is_duplicate: bool, clashes: bool) -> str | None:
    if target.name is None and target.topic_id is None:
        return "Neither topic name nor id were specified."
    if target.name is not None and target.topic_id is not None:
        return "You may not specify both topic name and topic id."
    if is_duplicate:
        return "Duplicate topic id." if target.name is None else "Duplicate topic name."
    return "The provided topic name maps to an ID that was already supplied." if clashes else None


# -- CreatePartitions


async def handle_create_partitions(broker: Broker, context: RequestContext, request: Any) -> Any:
    duplicates = repeated(topic.name for topic in request.topics)
    planners: dict[str, Planner] = {
        topic.name: partial(
            plan_create_partitions,
            name=topic.name,
            count=topic.count,
            broker_config=broker.local.config,
            assignments=topic.assignments and [assignment.broker_ids for assignment in topic.assignments],
        )
        async for topic in broker.turns.each(request.topics)
        if topic.name not in duplicates
    }
    outcomes = await change_each(broker, planners, validate_only=request.validate_only)
    outcomes.update(dict.fromkeys(duplicates, _duplicate_name()))
    schema = context.schema
    results = []
    async for name in broker.turns.each(dict.fromkeys(topic.name for topic in request.topics)):
        outcome = outcomes[name]
        results.append(
            schema.CreatePartitionsTopicResult(
                name=name,
                error_code=error_of(outcome),
                error_message=outcome.message if isinstance(outcome, KafkaError) else None,
            )
        )
    return schema.CreatePartitionsResponse(throttle_time=ms(0), results=tuple(results))


def _duplicate_name() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


# -- DeleteRecords

_Deleted = tuple[int, ErrorCode]
"""A partition's low watermark afterwards, or why it stays as it was."""


async def handle_delete_records(broker: Broker, context: RequestContext, request: Any) -> Any:
    places = ((topic.name, part) for topic in request.topics for part in topic.partitions)
    directories: set[Path] = set()
    deleted = [_delete_records(broker, directories, *place) async for place in broker.turns.each(places)]
    unsafe: StorageError | None = None
    try:
        # The new log start offset is kept in a checkpoint. Written now, a crash cannot bring the records back.
        for directory in directories:
            await broker.threads.disk(directory)(broker.logs.checkpoint, directory)
    except StorageError as failure:
        logger.error("deleted records may come back after a crash", extra={"why": failure.message})
        unsafe = failure
    topics = await broker.turns.finish(_deleted_topics(context.schema, request.topics, iter(deleted), unsafe))
    return context.schema.DeleteRecordsResponse(throttle_time=ms(0), topics=topics)


def _deleted_topics(
    schema: Schema, topics: Sequence[Any], outcomes: Iterator[_Deleted], unsafe: StorageError | None
) -> Work[tuple[Any, ...]]:
    results = []
    for topic in topics:
        partitions = []
        for part in topic.partitions:
            partitions.append(_deleted_records(schema, part.partition_index, next(outcomes), unsafe))
            yield
        results.append(schema.DeleteRecordsTopicResult(name=topic.name, partitions=tuple(partitions)))
    return tuple(results)


def _deleted_records(schema: Schema, index: int, deleted: _Deleted, unsafe: StorageError | None) -> Any:
    low_watermark, code = deleted
    if unsafe is not None and code is ErrorCode.NONE:
        low_watermark, code = -1, unsafe.code
    return schema.DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=low_watermark, error_code=error(code)
    )


def _delete_records(broker: Broker, directories: set[Path], topic: str, asked: Any) -> _Deleted:
    """Adds the directory of the partition's log, if something was deleted from it."""
    try:
        partition = broker.find_partition(topic, None, asked.partition_index)
        low_watermark = _move_log_start(partition, asked.offset)
    except KafkaError as refusal:
        return -1, refusal.code  # not the error: a hundred thousand of them, with their tracebacks, are much to keep
    directories.add(partition.log.log_dir.path)
    return low_watermark, ErrorCode.NONE


def _move_log_start(partition: Partition, offset: int) -> int:
    """Offset -1 stands for the high watermark."""
    partition.check_leads()
    topic, index = partition.topic, partition.index
    partition_log = partition.log
    if is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
    if partition_log.config.compact and not partition_log.config.delete:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Records of partition {topic}-{index} can not be deleted due to the configured policy",
        )
    return partition.delete_records(offset)

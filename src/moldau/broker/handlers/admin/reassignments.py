"""ElectLeaders (43), AlterPartitionReassignments (45) and ListPartitionReassignments (46).

`moldau.cluster` decides what is allowed; here requests become its events, and its replies become responses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.broker_requests import machine_of, run_everywhere
from moldau.broker.handlers.admin.metadata_changes import error_of, repeated
from moldau.broker.turns import Work
from moldau.cluster.elections import Outcomes
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.topics import check_partition_count
from moldau.wire.constants import ElectionType
from moldau.wire.messages import error, ms
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext
    from moldau.cluster.controller import Controller
    from moldau.metadata.image import MetadataImage
    from moldau.metadata.records import Record


class Broker(needs.HasTurns, needs.HasController, Protocol):
    """What these handlers use."""


ELECTED_PER_STEP = 1000
_TOP_LEVEL_ERROR_VERSION_MIN = 1


# -- ElectLeaders


async def handle_elect_leaders(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    asked = None
    if request.topic_partitions is not None:
        asked = [TopicPartition(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    code, outcomes = ErrorCode.NONE, Outcomes()
    try:
        check_partition_count(len(asked or ()))
        election = _election_type(getattr(request, "election_type", ElectionType.PREFERRED))
        for some in _parts(asked):
            outcomes |= await run_everywhere(broker.controller, partial(_elect, election, some))
    except KafkaError as refusal:
        code = refusal.code
        if context.version < _TOP_LEVEL_ERROR_VERSION_MIN:  # no place for it but with each partition
            outcomes = dict.fromkeys(asked or (), refusal)
    by_topic = _by_topic(
        outcomes,
        lambda index, outcome: schema.PartitionResult(
            partition_id=index,
            error_code=error_of(outcome),
            error_message=outcome.message if outcome is not None else None,
        ),
    )
    results = [
        schema.ReplicaElectionResult(topic=topic, partition_result=tuple(partitions))
        async for topic, partitions in broker.turns.each((await broker.turns.finish(by_topic)).items())
    ]
    return schema.ElectLeadersResponse(
        throttle_time=ms(0), error_code=error(code), replica_election_results=tuple(results)
    )


def _parts(asked: list[TopicPartition] | None) -> Iterator[list[TopicPartition] | None]:
    """Each is one step of the controller; None stands for all partitions there are."""
    if asked is None:
        yield None
        return
    for start in range(0, max(1, len(asked)), ELECTED_PER_STEP):
        yield asked[start : start + ELECTED_PER_STEP]


def _elect(
    election: ElectionType, asked: list[TopicPartition] | None, machine: Controller, image: MetadataImage
) -> tuple[Sequence[Record], Outcomes]:
    return machine.elect_leaders(image, election, asked)


def _election_type(number: int) -> ElectionType:
    try:
        return ElectionType(number)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {number}") from None


# -- AlterPartitionReassignments


async def handle_alter_partition_reassignments(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    allow_change = getattr(request, "allow_replication_factor_change", True)
    asked = [
        (TopicPartition(topic.name, part.partition_index), part.replicas)
        for topic in request.topics
        for part in topic.partitions
    ]
    duplicates = repeated(partition for partition, _ in asked)
    targets: dict[TopicPartition, Sequence[int] | None] = {
        partition: replicas for partition, replicas in asked if partition not in duplicates
    }
    failure, outcomes = None, Outcomes()
    try:
        check_partition_count(len(asked))
        outcomes = await run_everywhere(
            broker.controller,
            lambda machine, image: machine.reassign(image, targets, allow_replication_factor_change=allow_change),
        )
    except KafkaError as refusal:
        failure = refusal
    refused = KafkaError(ErrorCode.INVALID_REQUEST, "The partition is named more than once.")
    outcomes |= dict.fromkeys(duplicates, refused)
    by_topic = _by_topic(
        outcomes,
        lambda index, outcome: schema.ReassignablePartitionResponse(
            partition_index=index,
            error_code=error_of(outcome),
            error_message=outcome.message if outcome is not None else None,
        ),
    )
    responses = [
        schema.ReassignableTopicResponse(name=topic, partitions=tuple(partitions))
        async for topic, partitions in broker.turns.each((await broker.turns.finish(by_topic)).items())
    ]
    return schema.AlterPartitionReassignmentsResponse(
        throttle_time=ms(0),
        allow_replication_factor_change=allow_change,
        error_code=error_of(failure),
        error_message=failure.message if failure is not None else None,
        responses=tuple(responses),
    )


# -- ListPartitionReassignments


def handle_list_partition_reassignments(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    wanted = None
    if request.topics is not None:
        wanted = {topic.name: topic.partition_indexes for topic in request.topics}
    failure, found = None, []
    try:
        check_partition_count(sum(map(len, (wanted or {}).values())))
        found = machine_of(broker.controller).list_reassignments(broker.controller.image, wanted)
    except KafkaError as refusal:
        failure = refusal
    return schema.ListPartitionReassignmentsResponse(
        throttle_time=ms(0),
        error_code=error_of(failure),
        error_message=failure.message if failure is not None else None,
        topics=tuple(
            schema.OngoingTopicReassignment(
                name=name,
                partitions=tuple(
                    schema.OngoingPartitionReassignment(
                        partition_index=one.index,
                        replicas=one.replicas,
                        adding_replicas=one.adding,
                        removing_replicas=one.removing,
                    )
                    for one in partitions
                ),
            )
            for name, partitions in found
        ),
    )


def _by_topic(outcomes: Outcomes, result: Callable[[int, KafkaError | None], Any]) -> Work[dict[str, list[Any]]]:
    topics: dict[str, list[Any]] = defaultdict(list)
    for (topic, index), outcome in outcomes.items():
        topics[topic].append(result(index, outcome))
        yield
    return topics

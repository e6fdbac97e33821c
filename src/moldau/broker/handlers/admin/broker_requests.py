"""Requests of brokers to the controller: AlterPartition (56), BrokerRegistration (62), BrokerHeartbeat (63),
AllocateProducerIds (67) and AssignReplicasToDirs (73). Requests of users about the controller and its brokers:
DescribeQuorum (55) and UnregisterBroker (64). And Vote (52) among brokers, see `moldau.broker.cluster.takeover`.

`moldau.cluster` decides what is allowed; here requests become its events, and its replies become responses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from moldau.broker import needs
from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.turns import Work
from moldau.cluster.brokers import Heartbeat, HeartbeatReply, Registration
from moldau.cluster.controller import Controller
from moldau.cluster.isr_changes import UNCHECKED_EPOCH, IsrChangeRequest, IsrOutcome
from moldau.cluster.lost_replicas import Replica
from moldau.config.listeners import SECURITY_PROTOCOLS
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import PartitionRecord, Record
from moldau.wire.constants import METADATA_TOPIC
from moldau.wire.messages import Schema, error, ms
from moldau.wire.uuids import LOST_DIRECTORY, uuid_to_text

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(
    needs.HasMonotonicClock, needs.HasLocalBroker, needs.HasController, needs.HasMembership, needs.HasLogs, Protocol
):
    """What these handlers use."""


T = TypeVar("T")
Step = Callable[[Controller, MetadataImage], tuple[Sequence[Record], T]]

LISTENERS_MAX = 100
"""Per broker: all brokers store them, and clients get them with the metadata."""
_BROKER_EPOCHS_VERSION_MIN = 3
_NODES_VERSION_MIN = 2


async def run(controller: ControllerShell, step: Step[T]) -> T:
    """The controller's reply, once what it decided is durable; NOT_CONTROLLER where it is another broker."""

    def with_machine(image: MetadataImage) -> tuple[Sequence[Record], T]:
        return step(machine_of(controller), image)

    return await controller.run(with_machine)


async def run_everywhere(controller: ControllerShell, step: Step[T]) -> T:
    """Like `run`, but returns when every live broker has applied the change: users read their own writes."""

    def counted(machine: Controller, image: MetadataImage) -> tuple[Sequence[Record], tuple[T, int]]:
        records, reply = step(machine, image)
        return records, (reply, image.version + len(records))

    reply, version = await run(controller, counted)
    await controller.everywhere(version)
    return reply


def machine_of(controller: ControllerShell) -> Controller:
    machine = controller.machine
    if machine is None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
    return machine


def _check_broker(context: RequestContext) -> None:
    if not context.is_from_broker:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers may send this request")


# -- BrokerRegistration, BrokerHeartbeat


async def handle_broker_registration(broker: Broker, context: RequestContext, request: Any) -> Any:
    code, epoch = ErrorCode.NONE, -1
    try:
        _check_broker(context)
        asked = _registration(request)
        epoch = await run(
            broker.controller, lambda machine, image: machine.register(image, asked, broker.monotonic_ms())
        )
    except KafkaError as refusal:
        code = refusal.code
    return context.schema.BrokerRegistrationResponse(throttle_time=ms(0), error_code=error(code), broker_epoch=epoch)


def _registration(request: Any) -> Registration:
    if request.broker_id < 0 or request.incarnation_id is None or not 0 < len(request.listeners) <= LISTENERS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGISTRATION,
            f"a registration needs a broker id, an incarnation id, and 1 to {LISTENERS_MAX} listeners",
        )
    if not all(0 <= listener.security_protocol < len(SECURITY_PROTOCOLS) for listener in request.listeners):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "a listener has an unknown security protocol")
    return Registration(
        request.broker_id,
        request.cluster_id,
        uuid_to_text(request.incarnation_id),
        tuple((one.name, one.host, one.port, SECURITY_PROTOCOLS[one.security_protocol]) for one in request.listeners),
        request.rack,
        getattr(request, "previous_broker_epoch", -1),
    )


async def handle_broker_heartbeat(broker: Broker, context: RequestContext, request: Any) -> Any:
    beat = Heartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        request.want_fence,
        request.want_shut_down,
    )

    def step(machine: Controller, image: MetadataImage) -> tuple[Sequence[Record], HeartbeatReply]:
        planned = machine.heartbeat(image, beat, broker.monotonic_ms())
        broker.controller.on_heartbeat(beat.broker_id, context.connection)
        return planned

    code, reply = ErrorCode.NONE, HeartbeatReply(is_caught_up=False, is_fenced=True, should_shut_down=False)
    try:
        _check_broker(context)
        reply = await run(broker.controller, step)
    except KafkaError as refusal:
        code = refusal.code
    return context.schema.BrokerHeartbeatResponse(
        throttle_time=ms(0),
        error_code=error(code),
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
    )


async def handle_unregister_broker(broker: Broker, context: RequestContext, request: Any) -> Any:
    code, message = ErrorCode.NONE, None
    try:
        await run_everywhere(broker.controller, lambda machine, image: machine.unregister(image, request.broker_id))
    except KafkaError as refusal:
        code, message = refusal.code, refusal.message
    return context.schema.UnregisterBrokerResponse(throttle_time=ms(0), error_code=error(code), error_message=message)


# -- Vote


def handle_vote(broker: Broker, context: RequestContext, request: Any) -> Any:
    """PreVote only, which is not binding: whether this broker, too, has lost contact with that controller."""
    schema = context.schema
    refusal = ErrorCode.NONE
    if not context.is_from_broker:
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif request.cluster_id not in (None, broker.logs.cluster_id):
        refusal = ErrorCode.INCONSISTENT_CLUSTER_ID
    term = broker.controller.term

    def answer(asked: Any) -> Any:
        is_granted = getattr(asked, "pre_vote", False) and broker.membership.grants_vote(asked.replica_epoch)
        return schema.PartitionData(
            partition_index=asked.partition_index,
            error_code=error(ErrorCode.NONE),
            leader_id=term.node_id if term is not None else -1,
            leader_epoch=broker.controller.epoch,
            vote_granted=is_granted,
        )

    topics = () if refusal else request.topics
    return schema.VoteResponse(
        error_code=error(refusal),
        topics=tuple(
            schema.TopicData(topic_name=topic.topic_name, partitions=tuple(answer(each) for each in topic.partitions))
            for topic in topics
        ),
    )


# -- AlterPartition


async def handle_alter_partition(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema = context.schema
    asked = [(topic.topic_id, part) for topic in request.topics for part in topic.partitions]
    with_epochs = context.version >= _BROKER_EPOCHS_VERSION_MIN
    changes = [_isr_change(topic_id, part, with_epochs) for topic_id, part in asked]
    code, outcomes = ErrorCode.NONE, list[IsrOutcome]()
    try:
        _check_broker(context)
        outcomes = await run(
            broker.controller,
            lambda machine, image: machine.alter_partition(image, request.broker_id, request.broker_epoch, changes),
        )
    except KafkaError as refusal:
        code = refusal.code
    altered: dict[Any, list[Any]] = defaultdict(list)
    for change, outcome in zip(changes, outcomes, strict=False):  # no outcomes where the whole request was refused
        altered[change.topic_id].append(_altered(schema, change.index, outcome))
    return schema.AlterPartitionResponse(
        throttle_time=ms(0),
        error_code=error(code),
        topics=tuple(
            schema.TopicData(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in altered.items()
        ),
    )


def _isr_change(topic_id: Any, part: Any, with_epochs: bool) -> IsrChangeRequest:
    if with_epochs:
        isr = tuple((one.broker_id, one.broker_epoch) for one in part.new_isr_with_epochs)
    else:
        isr = tuple((broker_id, UNCHECKED_EPOCH) for broker_id in part.new_isr)
    return IsrChangeRequest(
        topic_id,
        part.partition_index,
        part.leader_epoch,
        part.partition_epoch,
        isr,
        is_recovering=part.leader_recovery_state != 0,
    )


def _altered(schema: Schema, index: int, outcome: IsrOutcome) -> Any:
    if isinstance(outcome, PartitionRecord):
        return schema.PartitionData(
            partition_index=index,
            error_code=error(ErrorCode.NONE),
            leader_id=outcome.leader,
            leader_epoch=outcome.leader_epoch,
            isr=outcome.isr,
            partition_epoch=outcome.partition_epoch,
        )
    return schema.PartitionData(
        partition_index=index, error_code=error(outcome), leader_id=0, leader_epoch=0, isr=(), partition_epoch=0
    )


# -- AssignReplicasToDirs


async def handle_assign_replicas_to_dirs(broker: Broker, context: RequestContext, request: Any) -> Any:
    """Only lost replicas matter: in which directory a broker keeps the others is not recorded."""
    schema = context.schema
    lost = [
        (topic.topic_id, part.partition_index)
        for directory in request.directories
        if directory.id_ == LOST_DIRECTORY
        for topic in directory.topics
        for part in topic.partitions
    ]
    code, codes = ErrorCode.NONE, dict[Replica, ErrorCode]()
    try:
        _check_broker(context)
        codes = await run(
            broker.controller,
            lambda machine, image: machine.lose_replicas(image, request.broker_id, request.broker_epoch, lost),
        )
    except KafkaError as refusal:
        code = refusal.code
    directories = [
        schema.DirectoryData(
            id_=directory.id_,
            topics=tuple(
                schema.TopicData(
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        schema.PartitionData(
                            partition_index=part.partition_index,
                            error_code=error(codes.get((topic.topic_id, part.partition_index), ErrorCode.NONE)),
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in directory.topics
            ),
        )
        for directory in (request.directories if code is ErrorCode.NONE else ())
    ]
    return schema.AssignReplicasToDirsResponse(
        throttle_time=ms(0), error_code=error(code), directories=tuple(directories)
    )


# -- AllocateProducerIds


async def handle_allocate_producer_ids(broker: Broker, context: RequestContext, request: Any) -> Any:
    code, block = ErrorCode.NONE, range(0)
    try:
        _check_broker(context)
        block = await run(
            broker.controller,
            lambda machine, image: machine.allocate_producer_ids(image, request.broker_id, request.broker_epoch),
        )
    except KafkaError as refusal:
        code = refusal.code
    return context.schema.AllocateProducerIdsResponse(
        throttle_time=ms(0), error_code=error(code), producer_id_start=block.start, producer_id_len=len(block)
    )


# -- DescribeQuorum


def handle_describe_quorum(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    """The controller in the words of a KRaft quorum: brokers are its voters, since each may be elected."""
    schema = context.schema
    code = ErrorCode.NONE if broker.controller.is_active else ErrorCode.NOT_CONTROLLER
    topics = []
    for topic in request.topics if code is ErrorCode.NONE else ():
        partitions = []
        for part in topic.partitions:
            partitions.append(_quorum(broker, schema, topic.topic_name, part.partition_index))
            yield
        topics.append(schema.TopicData(topic_name=topic.topic_name, partitions=tuple(partitions)))
    return schema.DescribeQuorumResponse(
        error_code=error(code),
        error_message=None,
        topics=tuple(topics),
        nodes=_quorum_nodes(broker, schema) if context.version >= _NODES_VERSION_MIN else (),
    )


def _quorum(broker: Broker, schema: Schema, topic: str, index: int) -> Any:
    if topic != METADATA_TOPIC or index != 0:
        unknown = error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return schema.PartitionData(
            partition_index=index,
            error_code=unknown,
            error_message=None,
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=(),
            observers=(),
        )
    image, applied = broker.controller.image, broker.controller.applied_versions
    replica = partial(schema.ReplicaState, replica_directory_id=None)
    voters = sorted({broker.local.node_id, *(one.broker_id for one in image.brokers.values() if not one.fenced)})
    return schema.PartitionData(
        partition_index=index,
        error_code=error(ErrorCode.NONE),
        error_message=None,
        leader_id=broker.local.node_id,
        leader_epoch=broker.controller.epoch,
        high_watermark=image.version,
        current_voters=tuple(replica(replica_id=one, log_end_offset=applied.get(one, -1)) for one in voters),
        observers=tuple(
            replica(replica_id=one, log_end_offset=applied.get(one, -1))
            for one in sorted(image.brokers)
            if one not in voters
        ),
    )


def _quorum_nodes(broker: Broker, schema: Schema) -> tuple[Any, ...]:
    return tuple(
        schema.Node(
            node_id=one.broker_id,
            listeners=tuple(schema.Listener(name=name, host=host, port=port) for name, host, port, _ in one.endpoints),
        )
        for one in broker.controller.image.brokers.values()
    )

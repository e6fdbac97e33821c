"""Registrations and heartbeats: what brokers report to the controller, and what it answers.

A broker is *active* when it is registered, not fenced, and not about to shut down: only then may it lead or be in an
ISR. While no broker has registered, the node itself is the one active broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord


@dataclass(frozen=True, slots=True)
class Registration:
    """A process that wants to be a broker; endpoints are (listener name, host, port, security protocol).

    `previous_broker_epoch` is the epoch of the last process, if its log is intact; -1 if something of it may be lost.
    """

    broker_id: int
    cluster_id: str
    incarnation_id: str
    endpoints: tuple[tuple[str, str, int, str], ...]
    rack: str | None = None
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    """The version of the image that the broker works with."""
    want_fence: bool = False
    want_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


def active_brokers(image: MetadataImage, node_id: int) -> frozenset[int]:
    """`node_id` is the broker itself, for a broker without a cluster."""
    if not image.brokers:
        return frozenset((node_id,))
    return frozenset(id_ for id_, broker in image.brokers.items() if broker.is_active)


def is_registered(image: MetadataImage, broker_id: int, broker_epoch: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.broker_epoch == broker_epoch


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> None:
    """NOT_LEADER_OR_FOLLOWER unless the request comes from the registered process of that broker."""
    if not is_registered(image, broker_id, broker_epoch):
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"stale epoch {broker_epoch} of broker {broker_id}",
        )


def registered(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRecord:
    """The registration that a broker's request belongs to; STALE_BROKER_EPOCH if it has another epoch."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}")
    if broker.broker_epoch != broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.broker_epoch} of broker {broker_id}, but got {broker_epoch}",
        )
    return broker

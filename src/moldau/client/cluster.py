"""Which broker to ask: bootstrap, metadata, controller, leaders, coordinators; and asking again when it moved.

A `ClusterClient` keeps one connection per broker, opened when first needed. When a broker cannot be reached, the client
drops its metadata, fetches it again and asks the broker that is in charge by then, until the timeout of the call. If no
broker can be reached at all, the call fails immediately.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from moldau.client.config import ClientConfig
from moldau.client.connection import Build, Connection, raise_error, to_error
from moldau.errors import RETRIABLE, UNREACHABLE, ErrorCode, KafkaError
from moldau.log_limits import LogLimit
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema
from moldau.wire.topic_partition import TopicPartition
from moldau.wire.uuids import ZERO_UUID

logger = logging.getLogger(__name__)

SILENT_WAIT_S = 3.0
"""A call that waits longer than this logs what it waits for: longer than an election or a load takes."""

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
P = TypeVar("P", bound=Iterable[Any])


class Node(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    partition: int
    leader: int  # -1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None  # eligible leader replicas; None: the broker did not say
    last_known_elr: tuple[int, ...] | None = None


class TopicMetadata(NamedTuple):
    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]
    error: ErrorCode = ErrorCode.NONE


class Metadata(NamedTuple):
    cluster_id: str | None
    controller_id: int
    brokers: dict[int, Node]
    topics: dict[str, TopicMetadata]


class CoordinatorType(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class ClusterClient:
    """`sleep` and `clock` come in from outside so that tests need not wait."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self._clock = clock
        self._sleep = sleep
        self._bootstrap: Connection | None = None
        self._connections: dict[int, Connection] = {}
        self._metadata: Metadata | None = None
        self._last_brokers: dict[int, Node] = {}
        self._waits = LogLimit(clock=clock)

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        connections = [*self._connections.values(), *([self._bootstrap] if self._bootstrap else [])]
        self._connections = {}
        self._bootstrap = None
        for connection in connections:
            connection.close()

    def close_lost(self) -> None:
        """Close the connections that brokers closed while they were idle; they are opened again when needed."""
        if self._bootstrap is not None and self._bootstrap.is_lost():
            self._bootstrap.close()
            self._bootstrap = None
        for node_id in [node_id for node_id, connection in self._connections.items() if connection.is_lost()]:
            self._connections.pop(node_id).close()

    def forget(self, node_id: int) -> None:
        """Close the connection to a broker; the next request opens a new one, to the address it has by then."""
        self._metadata = None
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def any_broker(self) -> Connection:
        """A connection to the first bootstrap server that answers."""
        if self._bootstrap is None:
            self._bootstrap = self._connect_bootstrap()
        return self._bootstrap

    def broker(self, node_id: int) -> Connection:
        connection = self._connections.get(node_id)
        if connection is None:
            broker = self.brokers().get(node_id)
            if broker is None:
                raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {node_id} is not part of the cluster")
            connection = Connection(broker.host, broker.port, self.config)
            self._connections[node_id] = connection
        return connection

    def controller(self) -> Connection:
        """Where topics are created and deleted: any broker where the cluster does not name a controller."""
        metadata = self._metadata or self.metadata(topics=())
        is_known = metadata.controller_id in metadata.brokers
        return self.broker(metadata.controller_id) if is_known else self.any_broker()

    def brokers(self) -> dict[int, Node]:
        return (self._metadata or self.metadata(topics=())).brokers

    def metadata(self, topics: Sequence[str] | None = None, *, allow_auto_topic_creation: bool = False) -> Metadata:
        """The cluster as the broker sees it now; `topics=None` asks for all of them."""

        def build(schema: Schema) -> Any:
            wanted = None
            if topics is not None:
                wanted = tuple(schema.MetadataRequestTopic(name=name, topic_id=None) for name in topics)
            fields = {"topics": wanted, "allow_auto_topic_creation": allow_auto_topic_creation}
            if version is not None and version >= 8:
                fields["include_topic_authorized_operations"] = False
            if version is not None and 8 <= version <= 10:
                fields["include_cluster_authorized_operations"] = False
            return schema.MetadataRequest(**fields)

        version = self.any_broker().version_of(ApiKey.METADATA)
        answer = self.at_any(ApiKey.METADATA, build)
        self._metadata = Metadata(
            cluster_id=getattr(answer, "cluster_id", None),
            controller_id=getattr(answer, "controller_id", -1),
            brokers={b.node_id: Node(b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in answer.brokers},
            topics={topic.name: _topic(topic) for topic in answer.topics},
        )
        self._last_brokers = self._metadata.brokers
        return self._metadata

    def at_any(self, api_key: int, build: Build) -> Any:
        """Send to any broker; when it went away since the last question, to another one."""
        try:
            return self.any_broker().send(api_key, build)
        except KafkaError as error:
            if error.code not in _CONNECTION_LOST or self._bootstrap is None:
                raise
        self.close()
        return self.any_broker().send(api_key, build)

    def at_controller(self, api_key: int, build: Build, codes: Callable[[Any], Iterable[int]]) -> Any:
        """Send to the controller; if it moved (as `codes` of the answer say) or is unreachable, find it and retry."""
        deadline = self._deadline()
        while True:
            try:
                answer = self.controller().send(api_key, build)
            except KafkaError as error:
                if error.code not in _CONNECTION_LOST or not self._pause(deadline, error):
                    raise
                self.close()
                continue
            if ErrorCode.NOT_CONTROLLER not in codes(answer) or not self._pause(deadline, "it has no controller"):
                return answer

    def at_leaders(
        self,
        values: Mapping[TopicPartition, V],
        call: Callable[[Connection, Mapping[TopicPartition, V]], Mapping[TopicPartition, R | KafkaError]],
    ) -> dict[TopicPartition, R | KafkaError]:
        """`call` once per leader with the partitions it leads; again for those whose leader is moving."""
        deadline = self._deadline()
        results: dict[TopicPartition, R | KafkaError] = {}
        waiting = dict(values)
        while True:
            by_leader, failed = self._group_by_leader(waiting)
            results.update(failed)
            for leader, part in by_leader.items():
                results.update(self._call_broker(leader, part, partial(self._call_leader, call, leader)))
            waiting = {tp: value for tp, value in waiting.items() if _is_retried(results[tp])}
            if not waiting or not self._pause(deadline, results[next(iter(waiting))]):
                return results

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """These partitions by the broker that leads them; those without a leader are left out."""
        by_leader, _ = self._group_by_leader(dict.fromkeys(partitions))
        return {leader: list(part) for leader, part in by_leader.items()}

    def at_coordinators(
        self,
        kind: CoordinatorType,
        keys: Iterable[str],
        call: Callable[[Node, Sequence[str]], Mapping[str, R | KafkaError]],
    ) -> dict[str, R | KafkaError]:
        """`call` once per coordinator with the groups or transactional ids it looks after; again for those whose
        coordinator moves, loads or is only being set up."""
        deadline = self._deadline()
        results: dict[str, R | KafkaError] = {}
        waiting = list(dict.fromkeys(keys))
        while True:
            for key in waiting:
                results[key] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The broker said nothing about '{key}'")
            by_coordinator, failed = self._group_by_coordinator(kind, waiting)
            results.update(failed)
            for coordinator, part in by_coordinator.items():
                results.update(self._call_broker(coordinator.id, part, partial(call, coordinator)))
            waiting = [key for key in waiting if _is_retried(results[key])]
            if not waiting or not self._pause(deadline, results[waiting[0]]):
                return results

    def at_every_broker(self, api_key: int, build: Build) -> dict[int, Any]:
        """The answers of all brokers; those whose coordinator still loads are asked again, then it is raised.
        A broker that leaves the cluster in between is left out."""
        deadline = self._deadline()
        answers: dict[int, Any] = {}
        for node in sorted(self.brokers()):
            while node in self.brokers():
                try:
                    answer = self.broker(node).send(api_key, build)
                    raise_error(answer.error_code)
                except KafkaError as error:
                    if error.code in _CONNECTION_LOST:
                        self.forget(node)
                    if not _is_retried(error) or not self._pause(deadline, error):
                        raise
                else:
                    answers[node] = answer
                    break
        return answers

    def _call_leader(
        self, call: Callable[[Connection, P], Mapping[K, R | KafkaError]], leader: int, part: P
    ) -> Mapping[K, R | KafkaError]:
        return call(self.broker(leader), part)

    def _call_broker(
        self, node_id: int, part: P, call: Callable[[P], Mapping[K, R | KafkaError]]
    ) -> Mapping[K, R | KafkaError]:
        """The answer of a broker; if it cannot be reached, that error for each thing it was asked about."""
        try:
            return call(part)
        except KafkaError as error:
            if error.code not in UNREACHABLE:
                raise
            self.forget(node_id)
            return dict.fromkeys(part, error)

    def _deadline(self) -> float:
        return self._clock() + self.config.api_timeout_ms / 1000

    def _group_by_coordinator(
        self, kind: CoordinatorType, keys: Sequence[str]
    ) -> tuple[dict[Node, list[str]], dict[str, KafkaError]]:
        by_coordinator: dict[Node, list[str]] = {}
        failed: dict[str, KafkaError] = {}
        for key, found in self._find_coordinators(kind, keys):
            if found.error_code:
                failed[key] = to_error(found.error_code, getattr(found, "error_message", None))
            else:
                by_coordinator.setdefault(Node(found.node_id, found.host, found.port), []).append(key)
        return by_coordinator, failed

    def _find_coordinators(self, kind: CoordinatorType, keys: Sequence[str]) -> list[tuple[str, Any]]:
        version = self.any_broker().version_of(ApiKey.FIND_COORDINATOR)
        if version is None or version >= 4:  # many keys in one request
            answer = self.at_any(
                ApiKey.FIND_COORDINATOR,
                lambda schema: schema.FindCoordinatorRequest(key_type=kind, coordinator_keys=tuple(keys)),
            )
            return [(found.key, found) for found in answer.coordinators]
        if version == 0 and kind is not CoordinatorType.GROUP:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The broker is too old: it does not support transactions")
        return [
            (key, self.at_any(ApiKey.FIND_COORDINATOR, partial(_find_one_request, kind=kind, key=key))) for key in keys
        ]

    def _group_by_leader(
        self, values: Mapping[TopicPartition, V]
    ) -> tuple[dict[int, dict[TopicPartition, V]], dict[TopicPartition, KafkaError]]:
        topics = self._topics_of(values)
        by_leader: dict[int, dict[TopicPartition, V]] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        for (topic, index), value in values.items():
            leaders = {p.partition: p.leader for p in topics[topic].partitions} if topic in topics else {}
            if index not in leaders:
                failed[TopicPartition(topic, index)] = to_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif leaders[index] < 0:
                failed[TopicPartition(topic, index)] = to_error(ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                by_leader.setdefault(leaders[index], {})[TopicPartition(topic, index)] = value
        return by_leader, failed

    def _topics_of(self, partitions: Iterable[TopicPartition]) -> dict[str, TopicMetadata]:
        """The metadata at hand, if it has all these partitions: a broker that no longer leads one will say so."""
        if self._metadata is not None:
            known = {(topic.name, p.partition) for topic in self._metadata.topics.values() for p in topic.partitions}
            if known.issuperset(partitions):
                return self._metadata.topics
        return self.metadata(sorted({topic for topic, _ in partitions})).topics

    def _pause(self, deadline: float, why: object) -> bool:
        """Drop the metadata and wait a little; False when the timeout is over."""
        self._metadata = None
        left_s = deadline - self._clock()
        if left_s <= 0:
            return False
        waited_s = self.config.api_timeout_ms / 1000 - left_s
        if waited_s >= SILENT_WAIT_S and self._waits.allows():
            logger.warning("Still waiting for the broker, for up to %.0f s: %s", left_s, why)
        self._sleep(self.config.retry_backoff_ms / 1000)
        return True

    def _connect_bootstrap(self) -> Connection:
        failures = []
        # If no bootstrap server can be reached, one of the brokers that were known last may be.
        heard = [(each.host, each.port) for each in self._last_brokers.values()]
        for host, port in dict.fromkeys([*self.config.bootstrap_servers, *heard]):
            try:
                return Connection(host, port, self.config)
            except KafkaError as error:
                if error.code not in _CONNECTION_LOST:
                    raise
                failures.append(error.message)
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "No broker could be reached: " + "; ".join(failures))


# The connection failed. That no address can be reached (BROKER_NOT_AVAILABLE) was found by trying them all.
_CONNECTION_LOST = UNREACHABLE - {ErrorCode.BROKER_NOT_AVAILABLE}
# A topic that does not exist is reported at once: mostly its name is misspelt.
_RETRIED = (RETRIABLE | UNREACHABLE) - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


def _is_retried(result: object) -> bool:
    return isinstance(result, KafkaError) and result.code in _RETRIED


def by_topic(values: Mapping[TopicPartition, V]) -> list[tuple[str, list[tuple[int, V]]]]:
    """Values of partitions as most requests want them: under their topics, in order."""
    topics: dict[str, list[tuple[int, V]]] = {}
    for topic, index in sorted(values):
        topics.setdefault(topic, []).append((index, values[TopicPartition(topic, index)]))
    return list(topics.items())


def _find_one_request(schema: Schema, *, kind: CoordinatorType, key: str) -> Any:
    return schema.FindCoordinatorRequest(key=key, key_type=kind)


def _topic(topic: Any) -> TopicMetadata:
    return TopicMetadata(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None) or ZERO_UUID,
        is_internal=getattr(topic, "is_internal", False),
        partitions=tuple(sorted((_partition(p) for p in topic.partitions), key=lambda p: p.partition)),
        error=ErrorCode(topic.error_code),
    )


def _partition(partition: Any) -> PartitionMetadata:
    return PartitionMetadata(
        partition=partition.partition_index,
        leader=partition.leader_id,
        leader_epoch=getattr(partition, "leader_epoch", -1),
        replicas=tuple(partition.replica_nodes),
        isr=tuple(partition.isr_nodes),
        offline=tuple(getattr(partition, "offline_replicas", ())),
    )

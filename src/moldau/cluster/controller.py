"""The controller: which brokers are registered, which of them are alive, and what that means for the partitions.

A step takes the newest image and an event, and returns the records that make it true, beside an answer; it changes
nothing else but the controller's soft state, which is when each broker was last heard of. That state is lost with the
controller: the next one gives every broker a whole new session. Refusals are KafkaErrors.

The states of a broker: *fenced* when it registers; *unfenced* once a heartbeat says that it knows its own registration;
*in controlled shutdown* from its request to stop until it leads nothing and every active broker knows that;
fenced again by its own request, at the end of that shutdown, after `broker.session.timeout.ms` of silence, or when it
is found dead. Partitions follow by the rules of `partition_changes`. All of them are checked when a broker changes
its state: that is rare, and a fraction of a millisecond for a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from moldau.cluster import elections, isr_changes, lost_replicas, reassignment, state_topics
from moldau.cluster.brokers import Heartbeat, HeartbeatReply, Registration, active_brokers, registered
from moldau.cluster.elections import Outcomes
from moldau.cluster.isr_changes import IsrChangeRequest, IsrOutcome
from moldau.cluster.lost_replicas import Replica
from moldau.cluster.partition_changes import each_changed, rules_by_topic
from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import BrokerRecord, ProducerIdsRecord, Record, RemoveBrokerRecord
from moldau.wire.constants import NO_LEADER, ElectionType
from moldau.wire.topic_partition import TopicPartition

PRODUCER_ID_BLOCK = 1_000
"""Ids that a broker gets at once, as in Kafka; a crash skips the rest of a block."""


class Controller:
    """`config` is called each time: parts of it are dynamic."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: MetadataImage,
        now_ms: int,
        applied_versions: dict[int, int] | None = None,
    ) -> None:
        """`applied_versions`: the image version that each broker has applied; shared with the metadata feed."""
        self._config = config
        self._last_seen_ms = {id_: now_ms for id_, broker in image.brokers.items() if not broker.fenced}
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms
        self._checked_version = -1
        self._shutdown_versions: dict[int, int] = {}
        self._applied_versions = applied_versions if applied_versions is not None else {}

    # -- brokers

    def register(self, image: MetadataImage, asked: Registration, now_ms: int) -> tuple[list[Record], int]:
        """Records and the broker's epoch. A broker starts fenced."""
        if image.cluster_id and asked.cluster_id != image.cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"Expected cluster ID {image.cluster_id}, but got cluster ID {asked.cluster_id}",
            )
        existing = image.brokers.get(asked.broker_id)
        if existing is not None and existing.incarnation_id == asked.incarnation_id:
            self._last_seen_ms[asked.broker_id] = now_ms
            amended = replace(existing, endpoints=asked.endpoints, rack=asked.rack)
            return ([] if amended == existing else [amended]), existing.broker_epoch
        # No two processes can listen on the same address, so the same address proves that the process before has ended.
        moved = existing is not None and existing.endpoints != asked.endpoints
        if moved and self._has_session(asked.broker_id, now_ms):
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"Another broker is registered with id {asked.broker_id}. If the broker was recently restarted this "
                "should self-resolve once its session expires.",
            )
        is_clean = existing is not None and existing.broker_epoch == asked.previous_broker_epoch
        records = self._removed_from_isrs(image, asked.broker_id, lost=not is_clean)
        # The last one: a part of these records alone, were it kept, would not claim that the broker is clean.
        epoch = image.version + len(records) + 1
        records.append(
            BrokerRecord(
                asked.broker_id, epoch, asked.endpoints, asked.rack, fenced=True, incarnation_id=asked.incarnation_id
            )
        )
        self._forget(asked.broker_id)
        self._last_seen_ms[asked.broker_id] = now_ms
        return records, epoch

    def heartbeat(self, image: MetadataImage, beat: Heartbeat, now_ms: int) -> tuple[list[Record], HeartbeatReply]:
        broker = registered(image, beat.broker_id, beat.broker_epoch)
        self._last_seen_ms[broker.broker_id] = now_ms
        self._applied_versions[broker.broker_id] = max(
            beat.current_metadata_offset, self._applied_versions.get(broker.broker_id, beat.current_metadata_offset)
        )
        is_caught_up = beat.current_metadata_offset >= broker.broker_epoch
        records: list[Record] = []
        fenced, stops = broker.fenced, False
        if beat.want_shut_down:
            stops = self._may_shut_down(image, broker, at_once=beat.want_fence)
            if stops:
                records, fenced = self._fenced(image, broker), True
                self._forget(broker.broker_id)
            elif not broker.in_controlled_shutdown:
                records = self._shutting_down(image, broker)
        elif beat.want_fence and not fenced:
            records, fenced = self._fenced(image, broker), True
        elif fenced and not beat.want_fence and is_caught_up:
            records, fenced = self._unfenced(image, broker), False
        return records, HeartbeatReply(is_caught_up, fenced, stops)

    def broker_died(self, image: MetadataImage, broker_id: int, broker_epoch: int) -> list[Record]:
        """The address of the broker refuses connections: no need to wait for the end of its session."""
        broker = image.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return []
        self._forget(broker_id)
        return self._fenced(image, broker)

    def unregister(self, image: MetadataImage, broker_id: int) -> tuple[list[Record], None]:
        if broker_id not in image.brokers:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        if broker_id == self._config().node_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is the controller: stop it first")
        self._forget(broker_id)
        return [*self._removed_from_isrs(image, broker_id), RemoveBrokerRecord(broker_id)], None

    # -- time

    def tick(self, image: MetadataImage, now_ms: int) -> list[Record]:
        """What becomes due with time: ends of sessions, possible elections, leaders back to preferred replicas."""
        config = self._config()
        silent = [
            broker
            for broker in image.brokers.values()
            if not broker.fenced and not self._has_session(broker.broker_id, now_ms)
        ]
        if silent:
            return self._fenced(image, *silent)
        # What was found stays due until it is in the image: only a check that finds nothing puts off the next one.
        if image.version != self._checked_version:
            records = elections.due_elections(image, config) or [*state_topics.grow(image, config)]
            if records:
                return records
            self._checked_version = image.version
        if now_ms < self._rebalance_at_ms:
            return []
        records = elections.rebalance(image, config) if config.auto_leader_rebalance_enable else []
        if not records:
            self._rebalance_at_ms = now_ms + self._rebalance_interval_ms
        return records

    def on_suspended(self, duration_ms: int) -> None:
        """The controller itself was suspended for so long, so the sessions of the others are that much longer."""
        self._last_seen_ms = {one: seen_ms + duration_ms for one, seen_ms in self._last_seen_ms.items()}

    def set_last_contact(self, broker_id: int, moment_ms: int) -> None:
        """When the previous controller was last heard of: its session is counted from then."""
        if broker_id in self._last_seen_ms:
            self._last_seen_ms[broker_id] = min(moment_ms, self._last_seen_ms[broker_id])

    def is_isolated(self, image: MetadataImage, now_ms: int) -> bool:
        """No contact with most brokers, although none was found dead: it may be this broker that is cut off."""
        me, session_ms = self._config().node_id, self._config().broker_session_timeout_ms
        others = [one for one, broker in image.brokers.items() if not broker.fenced and one != me]
        if len(others) < 2 or all(self._has_session(one, now_ms) for one in others):
            return False
        # Sessions end one after the other: a broker counts as silent after half of its session.
        since_ms = now_ms - session_ms // 2
        heard = sum(self._last_seen_ms.get(one, 0) > since_ms for one in others)
        return 2 * (heard + 1) <= len(others) + 1

    # -- partitions

    def alter_partition(
        self, image: MetadataImage, broker_id: int, broker_epoch: int, changes: Sequence[IsrChangeRequest]
    ) -> tuple[list[Record], list[IsrOutcome]]:
        return isr_changes.alter_partition(image, self._config(), broker_id, broker_epoch, changes)

    def lose_replicas(
        self, image: MetadataImage, broker_id: int, broker_epoch: int, replicas: Sequence[Replica]
    ) -> tuple[list[Record], dict[Replica, ErrorCode]]:
        return lost_replicas.lose_replicas(image, self._config(), broker_id, broker_epoch, replicas)

    def elect_leaders(
        self, image: MetadataImage, election: ElectionType, partitions: Sequence[TopicPartition] | None
    ) -> tuple[list[Record], Outcomes]:
        return elections.elect_leaders(image, self._config(), election, partitions)

    def reassign(
        self,
        image: MetadataImage,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> tuple[list[Record], Outcomes]:
        return reassignment.reassign(
            image, self._config(), targets, allow_replication_factor_change=allow_replication_factor_change
        )

    def list_reassignments(
        self, image: MetadataImage, wanted: Mapping[str, Sequence[int]] | None = None
    ) -> list[tuple[str, list[PartitionImage]]]:
        return reassignment.list_reassignments(image, wanted)

    def allocate_producer_ids(
        self, image: MetadataImage, broker_id: int, broker_epoch: int
    ) -> tuple[list[Record], range]:
        """A block of ids that no other broker gets."""
        registered(image, broker_id, broker_epoch)
        block = range(image.next_producer_id, image.next_producer_id + PRODUCER_ID_BLOCK)
        return [ProducerIdsRecord(block.stop)], block

    # -- inside

    @property
    def _rebalance_interval_ms(self) -> int:
        return self._config().leader_imbalance_check_interval_seconds * 1_000

    def _has_session(self, broker_id: int, now_ms: int) -> bool:
        last_seen_ms = self._last_seen_ms.get(broker_id)
        return last_seen_ms is not None and now_ms - last_seen_ms < self._config().broker_session_timeout_ms

    def _forget(self, broker_id: int) -> None:
        self._last_seen_ms.pop(broker_id, None)
        self._shutdown_versions.pop(broker_id, None)
        self._applied_versions.pop(broker_id, None)

    def _may_shut_down(self, image: MetadataImage, broker: BrokerRecord, *, at_once: bool) -> bool:
        if broker.fenced or at_once:
            return True
        leads = any(part.leader == broker.broker_id for topic in image.topics.values() for part in topic.partitions)
        if leads or not broker.in_controlled_shutdown:
            return not leads
        # Every active broker has to know the new leaders, so that clients that are sent away learn where to go.
        handed_over = self._shutdown_versions.get(broker.broker_id, 0)
        active = active_brokers(image, self._config().node_id)
        return all(self._applied_versions.get(one, handed_over) >= handed_over for one in active)

    def _shutting_down(self, image: MetadataImage, broker: BrokerRecord) -> list[Record]:
        records = [replace(broker, in_controlled_shutdown=True), *self._removed_from_isrs(image, broker.broker_id)]
        self._shutdown_versions[broker.broker_id] = image.version + len(records)
        return records

    def _fenced(self, image: MetadataImage, *brokers: BrokerRecord) -> list[Record]:
        fenced = [replace(one, fenced=True, in_controlled_shutdown=False) for one in brokers if not one.fenced]
        if not fenced:
            return []
        return [*self._removed_from_isrs(image, *(one.broker_id for one in fenced)), *fenced]

    def _unfenced(self, image: MetadataImage, broker: BrokerRecord) -> list[Record]:
        active = active_brokers(image, self._config().node_id) | {broker.broker_id}
        rules_of = rules_by_topic(image, self._config(), active)
        led = each_changed(image, rules_of, lambda one: one.leader == NO_LEADER)
        return [replace(broker, fenced=False, in_controlled_shutdown=False), *led]

    def _removed_from_isrs(self, image: MetadataImage, *broker_ids: int, lost: bool = False) -> list[Record]:
        """The partitions after these brokers left; `lost` if their logs may be lost too."""
        gone = frozenset(broker_ids)
        active = active_brokers(image, self._config().node_id) - gone
        return list(
            each_changed(
                image,
                rules_by_topic(image, self._config(), active),
                lambda one: not gone.isdisjoint(one.isr) or (lost and not gone.isdisjoint(one.elr)),
                lost=gone if lost else (),
            )
        )

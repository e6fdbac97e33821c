"""What becomes of a partition when brokers come and go, its leader reports another ISR, or its replicas change.

One function, `changed`, has the rules: a caller that plans a change says what is different and gets the record, or None
where nothing is.

- **Leader.** A member of the ISR that is active: the present leader if it may stay, the first of the replicas otherwise
  (with `preferred`, the first of the replicas before the present leader). Nobody, if there is none: the leader is -1.
- **ISR.** While anybody leads, it holds active brokers only. It is never empty: when its last members go, they stay in
  it, for they are known to have every committed record, and one of them has to come back.
- **ELR** (eligible leader replicas, KIP-966). What leaves an ISR that falls below `min.insync.replicas` stays eligible:
  leaders commit nothing then, so it lacks nothing: they go by the same value (`metadata.cluster_wide`). It is elected
  when nobody of the ISR is active. Who may have lost part of its log (`lost`) leaves ISR and ELR both; only if that
  leaves none at all, the last leader is kept.
- **Minimum.** `effective_min_isr`: the leader and the controller count it alike. When it changes, so may the ELR
  (`metadata.cluster_wide`).
- **Unclean.** Any active replica, and the ISR is that one alone: records may be lost. Only where the topic says so, or
  the controller's own configuration, as in Kafka.
- **Epochs.** The partition epoch grows with every change; the leader epoch when the leader changes, also to none, and
  when a replica is dropped, so that a fetch it may have under way is fenced.
- **Reassignment** ends when all that are to remain are in the ISR: the others are dropped, from the ISR too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache

from moldau.cluster.brokers import active_brokers
from moldau.config.broker import BrokerConfig
from moldau.metadata.cluster_wide import effective_min_isr, min_insync_replicas
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import PartitionRecord
from moldau.wire.constants import NO_LEADER

_NO_BROKERS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """What holds for all partitions of one topic at this moment."""

    active: Collection[int]
    min_insync_replicas: int = 1
    unclean: bool = False


def rules_by_topic(
    image: MetadataImage, config: BrokerConfig, active: Collection[int] | None = None
) -> Callable[[str], ElectionRules]:
    """The rules of a topic by its name, with the brokers that are active now, unless others are given."""
    now_active = active_brokers(image, config.node_id) if active is None else active
    own_unclean = image.broker_config(config.node_id).get(
        "unclean.leader.election.enable", image.broker_config(None).get("unclean.leader.election.enable")
    )

    @cache
    def rules_of(topic: str) -> ElectionRules:
        # Only these two of the topic's keys: to resolve them all takes a hundred times longer. What is dynamic comes
        # from the image that is planned on: `config` may not have followed it yet.
        unclean = image.topic_config(topic).get("unclean.leader.election.enable", own_unclean)
        return ElectionRules(
            now_active,
            min_insync_replicas(image, config, topic),
            config.unclean_leader_election_enable if unclean is None else unclean.strip().lower() == "true",
        )

    return rules_of


@dataclass(frozen=True, slots=True)
class TargetState:
    """What a partition is to become, as far as it can now."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def changed(
    topic_id: uuid.UUID,
    partition: PartitionImage,
    rules: ElectionRules,
    target: TargetState | None = None,
    *,
    lost: Collection[int] = _NO_BROKERS,
    preferred: bool = False,
    target_factor: int | None = None,
) -> PartitionRecord | None:
    """The partition under `rules`; `target` where something else than the brokers' state changed. None: as it was."""
    if target_factor is None:
        target_factor = partition.target_factor
    if target is None:
        target = TargetState(partition.replicas, partition.isr, partition.adding, partition.removing)
    target = _completed(target, rules.active)
    replicas = target.replicas
    leader, isr, elr = _elect(partition, target, rules, lost, preferred)
    before = (partition.leader, partition.isr, partition.elr, partition.replicas, partition.adding, partition.removing)
    is_same = (leader, isr, elr, replicas, target.adding, target.removing) == before
    if is_same and target_factor == partition.target_factor:
        return None
    new_epoch = leader != partition.leader or not set(replicas).issuperset(partition.replicas)
    if leader == NO_LEADER:
        last_known = partition.last_known_elr or ((partition.leader,) if partition.leader != NO_LEADER else ())
    else:
        last_known = ()
    return PartitionRecord(
        topic_id,
        partition.index,
        replicas,
        isr,
        leader,
        partition.leader_epoch + new_epoch,
        partition.partition_epoch + 1,
        target.adding,
        target.removing,
        elr,
        last_known,
        target_factor,
    )


def each_changed(
    image: MetadataImage,
    rules_of: Callable[[str], ElectionRules],
    concerned: Callable[[PartitionImage], bool],
    *,
    lost: Collection[int] = _NO_BROKERS,
) -> Iterator[PartitionRecord]:
    """Records of those partitions for which the rules of this moment make a difference."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if concerned(partition):
                record = changed(topic.topic_id, partition, rules_of(topic.name), lost=lost)
                if record is not None:
                    yield record


def _completed(target: TargetState, active: Collection[int]) -> TargetState:
    if not target.adding and not target.removing:
        return target
    replicas = _without(target.replicas, target.removing)
    isr = _without(target.isr, target.removing)
    if not replicas or not all(one in isr and one in active for one in replicas):
        return target
    return TargetState(replicas, isr)


def _elect(
    partition: PartitionImage, target: TargetState, rules: ElectionRules, lost: Collection[int], preferred: bool
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(leader, ISR, ELR)."""
    active, replicas = rules.active, target.replicas
    known = _without(target.isr, lost)
    eligible = tuple(one for one in _without(partition.elr, lost) if one in replicas and one not in known)
    isr = tuple(one for one in known if one in active)
    leader = NO_LEADER
    if isr:
        first = (replicas[0], partition.leader) if preferred else (partition.leader, *replicas)
        leader = next(one for one in (*first, *replicas) if one in isr)
    else:
        leader = next((one for one in replicas if one in eligible and one in active), NO_LEADER)
        if leader == NO_LEADER and rules.unclean:
            leader = next((one for one in replicas if one in active and one not in lost), NO_LEADER)
            if leader != NO_LEADER:
                return leader, (leader,), ()
        isr = (leader,) if leader != NO_LEADER else known or eligible or _likely_best_replica(partition, replicas)
    if len(isr) >= effective_min_isr(rules.min_insync_replicas, replicas, target.adding):
        return leader, isr, ()
    candidates = dict.fromkeys((*eligible, *partition.isr))
    return leader, isr, tuple(one for one in candidates if one in replicas and one not in isr and one not in lost)


def _likely_best_replica(partition: PartitionImage, replicas: tuple[int, ...]) -> tuple[int, ...]:
    """Every replica may have lost records: the last leader is likely to have lost the fewest."""
    last = (*partition.last_known_elr, partition.leader, *partition.isr, *replicas)
    return (next(one for one in last if one in replicas),)


def _without(brokers: tuple[int, ...], others: Collection[int]) -> tuple[int, ...]:
    return tuple(one for one in brokers if one not in others) if others else brokers

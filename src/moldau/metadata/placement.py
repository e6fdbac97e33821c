"""Placement: which brokers get the replicas of new partitions, the first of them being the preferred leader.

Leaders go round the active brokers; followers too, one step further in each round, so that pairs change. Brokers stand
in the circle with their racks taking turns, and each replica goes to a rack that has the fewest of its partition: to as
many racks as there are, or replicas. Nothing is random: a topic begins where the ones before it ended, so leaders
spread evenly over topics, too.

A broker that is fenced, or about to stop, gets a replica only where the active ones are too few, and never leads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage


class UsableBroker(NamedTuple):
    """A broker as placement sees it."""

    broker_id: int
    rack: str | None = None
    is_active: bool = True


def usable_brokers(image: MetadataImage, node_id: int) -> list[UsableBroker]:
    """The brokers that are registered; `node_id` alone where none is."""
    brokers = sorted(image.brokers.values(), key=lambda broker: broker.broker_id)
    return [UsableBroker(broker.broker_id, broker.rack, broker.is_active) for broker in brokers] or [
        UsableBroker(node_id)
    ]


def place(brokers: Sequence[UsableBroker], first: int, count: int, replication_factor: int) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, of which the first is the `first` in the round."""
    active = [broker for broker in brokers if broker.is_active]
    if replication_factor > len(brokers):
        raise _unplaceable(
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only {len(brokers)} "
            "broker(s) are registered.",
        )
    if not active:
        raise _unplaceable(replication_factor, "All brokers are currently fenced.")
    circle = _by_turns(active)
    missing = max(0, replication_factor - len(active))
    spare = _by_turns([broker for broker in brokers if not broker.is_active]) if missing else []
    has_racks = len({broker.rack for broker in brokers}) > 1
    placed = []
    for number in range(first, first + count):
        row, others = _row(circle, number), _turned(spare, number)
        chosen = _spread(row, others, replication_factor) if has_racks else row[:replication_factor] + others[:missing]
        placed.append(tuple(broker.broker_id for broker in chosen))
    return placed


def extend(
    brokers: Sequence[UsableBroker], replicas: Sequence[int], replication_factor: int, others: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """`replicas` with more of the active brokers, up to `replication_factor`; `others` are those of the same topic.

    Each goes to the rack, then to the broker, that has the fewest; so does the preferred leadership.
    """
    racks = {broker.broker_id: broker.rack for broker in brokers}
    load = Counter(one for each in others for one in each)
    leads = Counter(each[0] for each in others)
    chosen = list(replicas)
    free = [broker for broker in brokers if broker.is_active and broker.broker_id not in chosen]
    while free and len(chosen) < replication_factor:
        taken = Counter(racks.get(one) for one in chosen)
        best = min(free, key=lambda broker: (taken[broker.rack], load[broker.broker_id], broker.broker_id))
        free.remove(best)
        chosen.append(best.broker_id)
    first = min(chosen, key=lambda one: leads[one])
    return first, *(one for one in chosen if one != first)


def next_of_topic(brokers: Sequence[UsableBroker], first_leader: int, count: int) -> int:
    """Where a topic goes on that has `count` partitions, the first of them led by that broker."""
    circle = [broker.broker_id for broker in _by_turns([broker for broker in brokers if broker.is_active])]
    return count + (circle.index(first_leader) if first_leader in circle else 0)


def _unplaceable(replication_factor: int, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {why}",
    )


def _by_turns(brokers: Sequence[UsableBroker]) -> list[UsableBroker]:
    """One of each rack, then the next of each."""
    racks: dict[str | None, list[UsableBroker]] = defaultdict(list)
    for broker in brokers:
        racks[broker.rack].append(broker)
    turns = max(map(len, racks.values()), default=0)
    return [rack[turn] for turn in range(turns) for rack in racks.values() if turn < len(rack)]


def _row(circle: Sequence[UsableBroker], number: int) -> list[UsableBroker]:
    """The leader of that partition and the others after it, in the order of this round."""
    leader, shift = number % len(circle), number // len(circle)
    others = [*circle[leader + 1 :], *circle[:leader]]
    return [circle[leader], *_turned(others, shift)]


def _turned(circle: Sequence[UsableBroker], shift: int) -> list[UsableBroker]:
    if not circle:
        return []
    start = shift % len(circle)
    return [*circle[start:], *circle[:start]]


def _spread(row: list[UsableBroker], spare: list[UsableBroker], replication_factor: int) -> list[UsableBroker]:
    chosen: list[UsableBroker] = []
    taken: Counter[str | None] = Counter()
    for _ in range(replication_factor):
        left = row or spare
        broker = min(left, key=lambda one: taken[one.rack])  # the first of those with the fewest
        left.remove(broker)
        taken[broker.rack] += 1
        chosen.append(broker)
    return chosen

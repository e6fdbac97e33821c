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


class Host(NamedTuple):
    """A broker as placement sees it."""

    broker_id: int
    rack: str | None = None
    is_active: bool = True


def hosts_of(image: MetadataImage, node_id: int) -> list[Host]:
    """The brokers that are registered; `node_id` alone where none is."""
    brokers = sorted(image.brokers.values(), key=lambda broker: broker.broker_id)
    return [Host(broker.broker_id, broker.rack, broker.is_active) for broker in brokers] or [Host(node_id)]


def place(hosts: Sequence[Host], first: int, count: int, replication_factor: int) -> list[tuple[int, ...]]:
    """Replicas of `count` partitions, of which the first is the `first` in the round."""
    active = [host for host in hosts if host.is_active]
    if replication_factor > len(hosts):
        raise _unplaceable(
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only {len(hosts)} "
            "broker(s) are registered.",
        )
    if not active:
        raise _unplaceable(replication_factor, "All brokers are currently fenced.")
    circle = _by_turns(active)
    missing = max(0, replication_factor - len(active))
    spare = _by_turns([host for host in hosts if not host.is_active]) if missing else []
    has_racks = len({host.rack for host in hosts}) > 1
    placed = []
    for number in range(first, first + count):
        row, others = _row(circle, number), _turned(spare, number)
        chosen = _spread(row, others, replication_factor) if has_racks else row[:replication_factor] + others[:missing]
        placed.append(tuple(host.broker_id for host in chosen))
    return placed


def extend(
    hosts: Sequence[Host], replicas: Sequence[int], replication_factor: int, others: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """`replicas` with more of the active brokers, up to `replication_factor`; `others` are those of the same topic.

    Each goes to the rack, then to the broker, that has the fewest; so does the preferred leadership.
    """
    racks = {host.broker_id: host.rack for host in hosts}
    load = Counter(one for each in others for one in each)
    leads = Counter(each[0] for each in others)
    chosen = list(replicas)
    free = [host for host in hosts if host.is_active and host.broker_id not in chosen]
    while free and len(chosen) < replication_factor:
        taken = Counter(racks.get(one) for one in chosen)
        best = min(free, key=lambda host: (taken[host.rack], load[host.broker_id], host.broker_id))
        free.remove(best)
        chosen.append(best.broker_id)
    first = min(chosen, key=lambda one: leads[one])
    return first, *(one for one in chosen if one != first)


def next_of_topic(hosts: Sequence[Host], first_leader: int, count: int) -> int:
    """Where a topic goes on that has `count` partitions, the first of them led by that broker."""
    circle = [host.broker_id for host in _by_turns([host for host in hosts if host.is_active])]
    return count + (circle.index(first_leader) if first_leader in circle else 0)


def _unplaceable(replication_factor: int, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): {why}",
    )


def _by_turns(hosts: Sequence[Host]) -> list[Host]:
    """One of each rack, then the next of each."""
    racks: dict[str | None, list[Host]] = defaultdict(list)
    for host in hosts:
        racks[host.rack].append(host)
    turns = max(map(len, racks.values()), default=0)
    return [rack[turn] for turn in range(turns) for rack in racks.values() if turn < len(rack)]


def _row(circle: Sequence[Host], number: int) -> list[Host]:
    """The leader of that partition and the others after it, in the order of this round."""
    leader, shift = number % len(circle), number // len(circle)
    others = [*circle[leader + 1 :], *circle[:leader]]
    return [circle[leader], *_turned(others, shift)]


def _turned(circle: Sequence[Host], shift: int) -> list[Host]:
    if not circle:
        return []
    start = shift % len(circle)
    return [*circle[start:], *circle[:start]]


def _spread(row: list[Host], spare: list[Host], replication_factor: int) -> list[Host]:
    chosen: list[Host] = []
    taken: Counter[str | None] = Counter()
    for _ in range(replication_factor):
        left = row or spare
        host = min(left, key=lambda one: taken[one.rack])  # the first of those with the fewest
        left.remove(host)
        taken[host.rack] += 1
        chosen.append(host)
    return chosen

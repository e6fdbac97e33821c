"""The "simple" assignor: which member of a share group fetches from which partition.

A partition may have several members: that is the point of a queue. With more partitions than members each partition
has one, and the members' shares differ by one partition at most; with more members each member has one partition, and
the partitions' members differ by one at most. Within that, what was assigned before stays.

Topics that are subscribed to by the same members are dealt out together, others apart from them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Partition = tuple[uuid.UUID, int]
Assignment = frozenset[Partition]

_A = TypeVar("_A", bound=Hashable)
_B = TypeVar("_B", bound=Hashable)


def assign(
    subscriptions: Mapping[str, Collection[uuid.UUID]],
    partition_counts: Mapping[uuid.UUID, int],
    before: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """Each member's partitions, given the topics that it subscribes to and what it had before."""
    subscribers: dict[uuid.UUID, list[str]] = defaultdict(list)
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            subscribers[topic].append(member)
    topics_of: dict[tuple[str, ...], list[uuid.UUID]] = defaultdict(list)
    for topic in sorted(subscribers):
        topics_of[tuple(subscribers[topic])].append(topic)
    dealt: dict[str, set[Partition]] = {member: set() for member in subscriptions}
    for members, topics in topics_of.items():
        partitions = [(topic, index) for topic in topics for index in range(partition_counts.get(topic, 0))]
        if not partitions:
            continue
        for member, partition in _deal(members, partitions, before):
            dealt[member].add(partition)
    return {member: frozenset(partitions) for member, partitions in dealt.items()}


def _deal(
    members: Sequence[str], partitions: Sequence[Partition], before: Mapping[str, Assignment]
) -> list[tuple[str, Partition]]:
    if len(members) > len(partitions):
        had = {member: sorted(before.get(member, ())) for member in members}
        return list(_match(members, partitions, had).items())
    holders: dict[Partition, list[str]] = defaultdict(list)
    for member in members:
        for partition in before.get(member, ()):
            holders[partition].append(member)
    return [(member, partition) for partition, member in _match(partitions, members, holders).items()]


def _match(many: Sequence[_A], few: Sequence[_B], before: Mapping[_A, Sequence[_B]]) -> dict[_A, _B]:
    """One of the `few` for each of the `many`, evenly; the one it had before, where that is still even."""
    low, extra = divmod(len(many), len(few))
    load = dict.fromkeys(few, 0)
    matched: dict[_A, _B] = {}
    for one in many:
        for other in before.get(one, ()):
            if other in load and load[other] < low + (extra > 0):
                extra -= load[other] == low
                load[other] += 1
                matched[one] = other
                break
    slots = [other for other in few for _ in range(low - load[other])]
    slots += [other for other in few if load[other] <= low][:extra]
    rest = [one for one in many if one not in matched]
    matched.update(zip(rest, slots, strict=True))
    return matched

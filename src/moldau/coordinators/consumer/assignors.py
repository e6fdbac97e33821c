"""The server-side assignors: who gets which partition. Pure functions over topics, members and what members have.

    uniform   loads as equal as the subscriptions allow, and as few moves as that costs (the default)
    range     of each topic a contiguous range, in the order of the members: topics with as many partitions and the same
              subscribers end up co-partitioned; it has no memory, but static members keep their place

Uniform works in three passes. Members keep what they have and may still have; partitions without an owner are dealt
to whoever of their subscribers has least; then partitions go from the most to the least loaded until no move would
bring two loads nearer. Two members of the same subscription thus never differ by more than one partition, and a
partition moves only where balance asks for it. A move needs a topic that both are subscribed to, so topics with the
same subscribers are balanced together, as one *pool*: a group whose members all subscribe to the same has one.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple, TypeAlias

Partitions: TypeAlias = Mapping[uuid.UUID, frozenset[int]]
"""Partitions by topic; a topic without partitions is not in it."""

MAX_SWEEPS = 16
"""Pools that share members can hand partitions on to each other for long; each sweep about halves what is left."""


by_number = attrgetter("int")
"""The order of topics. UUIDs compare and hash in Python, which counts where there are thousands of them."""


class Subscriber(NamedTuple):
    member_id: str
    instance_id: str | None
    topics: frozenset[uuid.UUID]
    current: Partitions
    """Its part of the previous target assignment."""


Assignor: TypeAlias = Callable[[Mapping[uuid.UUID, int], Iterable[Subscriber]], dict[str, Partitions]]
"""Partition counts by topic, and members, to partitions by member id. Topics without a count do not exist."""


def assign_range(topics: Mapping[uuid.UUID, int], subscribers: Iterable[Subscriber]) -> dict[str, Partitions]:
    members = sorted(subscribers, key=_order)
    assigned: dict[str, dict[uuid.UUID, frozenset[int]]] = {member.member_id: {} for member in members}
    for pool in _pools(topics, members):
        for topic in pool.topics:
            count, start = topics[topic], 0
            quota, extra = divmod(count, len(pool.members))
            for position, index in enumerate(pool.members[:count]):  # the rest gets nothing
                end = start + quota + (position < extra)
                assigned[members[index].member_id][topic] = frozenset(range(start, end))
                start = end
    return dict(assigned)


def assign_uniform(topics: Mapping[uuid.UUID, int], subscribers: Iterable[Subscriber]) -> dict[str, Partitions]:
    members = sorted(subscribers, key=_order)
    table = _Table(topics, members)
    pools = sorted(_pools(topics, members), key=lambda pool: len(pool.members))  # the least choice first
    for pool in pools:
        table.assign_unassigned(pool)
    for _ in range(MAX_SWEEPS):
        if not sum(table.balance(pool) for pool in pools):
            break
    return table.result()


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


class _Pool(NamedTuple):
    """Topics that have the same subscribers, those as positions in the list of members."""

    topics: dict[uuid.UUID, int]  # and their positions in `order`
    order: list[uuid.UUID]
    members: list[int]


def _pools(topics: Mapping[uuid.UUID, int], members: list[Subscriber]) -> list[_Pool]:
    by_subscription: dict[frozenset[uuid.UUID], list[int]] = {}
    for index, member in enumerate(members):
        by_subscription.setdefault(member.topics, []).append(index)
    subscriptions: dict[uuid.UUID, list[int]] = {}
    for number, subscription in enumerate(by_subscription):
        for topic in subscription:
            if topic in topics:
                subscriptions.setdefault(topic, []).append(number)
    indexes = list(by_subscription.values())
    pools: dict[tuple[int, ...], _Pool] = {}
    for topic in sorted(subscriptions, key=by_number):
        numbers = tuple(subscriptions[topic])
        if numbers not in pools:
            pools[numbers] = _Pool({}, [], sorted(index for number in numbers for index in indexes[number]))
        pools[numbers].topics[topic] = len(pools[numbers].order)
        pools[numbers].order.append(topic)
    return list(pools.values())


def _order(member: Subscriber) -> tuple[bool, str]:
    """Static members first, by the name that outlives their restarts: so they keep what they have."""
    return (False, member.instance_id) if member.instance_id is not None else (True, member.member_id)


_Surplus: TypeAlias = tuple[int, int, list[int]]
"""For a topic: how many partitions a member has, negated; the topic's position in its pool; the partitions in order."""


class _Table:
    """The assignment that the uniform assignor works on; members are positions in its list.

    In a large group most members keep what they have: only what others have is written again (`_new_assignment`).
    """

    def __init__(self, topics: Mapping[uuid.UUID, int], members: list[Subscriber]) -> None:
        self._members = members
        self._free: dict[uuid.UUID, set[int]] = {topic: set(range(count)) for topic, count in topics.items()}
        self._held: dict[int, dict[uuid.UUID, set[int]]] = {}
        self._loads: list[int] = []
        by_subscription: dict[frozenset[uuid.UUID], dict[uuid.UUID, set[int]]] = {}
        for index, member in enumerate(members):
            free = by_subscription.get(member.topics)
            if free is None:
                free = {topic: self._free[topic] for topic in member.topics if topic in self._free}
                by_subscription[member.topics] = free
            self._loads.append(self._retain(index, free))

    def _retain(self, index: int, free: Mapping[uuid.UUID, set[int]]) -> int:
        """A member keeps what it may have and no member before it has; how much that is."""
        load = 0
        for topic, partitions in self._members[index].current.items():
            unowned = free.get(topic, set())
            kept = partitions
            if not partitions <= unowned:
                kept = partitions & unowned
                self._new_assignment(index)[topic] = set(kept)
            unowned -= kept
            load += len(kept)
        return load

    def _new_assignment(self, index: int) -> dict[uuid.UUID, set[int]]:
        """What a member has, to be changed; a topic of which nothing is left may stay behind."""
        held = self._held.get(index)
        if held is None:
            current = self._members[index].current
            held = self._held[index] = {topic: set(partitions) for topic, partitions in current.items()}
        return held

    def assign_unassigned(self, pool: _Pool) -> None:
        """Partitions without an owner, each to the subscriber that has least."""
        heap = [(self._loads[index], index) for index in pool.members]
        heapq.heapify(heap)
        for topic in pool.topics:
            for partition in sorted(self._free[topic]):
                load, index = heap[0]
                self._new_assignment(index).setdefault(topic, set()).add(partition)
                self._loads[index] = load + 1
                heapq.heapreplace(heap, (load + 1, index))

    def balance(self, pool: _Pool) -> int:
        """Moves from the most to the least loaded until they differ by one at most; how many there were."""
        loads, moves = self._loads, 0
        takers = [(loads[index], index) for index in pool.members]
        givers = [(-loads[index], index) for index in pool.members]
        heapq.heapify(takers)
        heapq.heapify(givers)
        surpluses: dict[int, list[_Surplus]] = {}
        while givers:
            giver, taker = givers[0][1], takers[0][1]
            if loads[giver] - loads[taker] < 2:
                break
            surplus = surpluses.get(giver)
            if surplus is None:
                surplus = surpluses[giver] = self._surplus(giver, pool)
            if not surplus:  # its load is all from other pools
                heapq.heappop(givers)
                continue
            self._move(pool, surplus, giver, taker)
            # Only a member that was the least has taken, so it never becomes one to give, and the other way round:
            # its entry in the other heap may be out of date.
            heapq.heapreplace(givers, (-loads[giver], giver))
            heapq.heapreplace(takers, (loads[taker], taker))
            moves += 1
        return moves

    def _surplus(self, giver: int, pool: _Pool) -> list[_Surplus]:
        """What it can give, as a heap."""
        surplus = [
            (-len(partitions), pool.topics[topic], sorted(partitions))
            for topic, partitions in self._new_assignment(giver).items()
            if partitions and topic in pool.topics
        ]
        heapq.heapify(surplus)
        return surplus

    def _move(self, pool: _Pool, surplus: list[_Surplus], giver: int, taker: int) -> None:
        """One partition, of the topic of which the giver has most, so that each topic spreads, too.

        The last one of it: like Apache Kafka's members, those who were first keep the first partitions.
        """
        count, position, partitions = surplus[0]
        topic, partition = pool.order[position], partitions.pop()
        self._new_assignment(giver)[topic].discard(partition)
        self._new_assignment(taker).setdefault(topic, set()).add(partition)
        if count == -1:
            heapq.heappop(surplus)
        else:
            heapq.heapreplace(surplus, (count + 1, position, partitions))
        self._loads[giver] -= 1
        self._loads[taker] += 1

    def result(self) -> dict[str, Partitions]:
        assigned = {member.member_id: member.current for member in self._members}
        for index, held in self._held.items():
            assigned[self._members[index].member_id] = {topic: frozenset(some) for topic, some in held.items() if some}
        return assigned

"""What the assignors promise, for any group, any topics, and whatever the members had before."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.coordinators.consumer.assignors import ASSIGNORS, Partitions, Subscriber, assign_range, assign_uniform
from tests.examples import examples

IDS = [uuid.UUID(int=number) for number in range(1, 7)]

counts = st.dictionaries(st.sampled_from(IDS), st.integers(1, 12), min_size=1)


def subscriber(name: str, topics: frozenset[uuid.UUID], current: Partitions | None = None) -> Subscriber:
    return Subscriber(name, None, topics, current or {})


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[uuid.UUID, int], list[Subscriber]]:
    """Members of several subscriptions; some have partitions already, also of topics that are gone or not theirs."""
    topics = draw(counts)
    subscriptions = draw(st.lists(st.frozensets(st.sampled_from(IDS)), min_size=1, max_size=4))
    members = [f"m{number}" for number in range(draw(st.integers(1, 8)))]
    owners = draw(st.lists(st.sampled_from([*members, None]), min_size=72, max_size=72))
    held: dict[str, dict[uuid.UUID, frozenset[int]]] = {member: {} for member in members}
    for position, owner in enumerate(owners):
        if owner is not None:
            topic = IDS[position // 12]
            held[owner][topic] = held[owner].get(topic, frozenset()) | {position % 12}
    return topics, [subscriber(member, draw(st.sampled_from(subscriptions)), held[member]) for member in members]


def loads(assignment: dict[str, Partitions]) -> dict[str, int]:
    return {member: sum(map(len, partitions.values())) for member, partitions in assignment.items()}


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(deadline=None)
@given(group=groups())
def test_every_partition_goes_to_exactly_one_subscriber(
    name: str, group: tuple[dict[uuid.UUID, int], list[Subscriber]]
) -> None:
    topics, members = group
    assignment = ASSIGNORS[name](topics, members)
    assert assignment.keys() == {member.member_id for member in members}
    given_out: Counter[tuple[uuid.UUID, int]] = Counter()
    for member in members:
        partitions = assignment[member.member_id]
        assert partitions.keys() <= member.topics & topics.keys()
        assert all(partitions.values())
        given_out.update((topic, number) for topic, numbers in partitions.items() for number in numbers)
    subscribed = {topic for member in members for topic in member.topics}
    assert given_out == Counter(
        (topic, number) for topic, count in topics.items() if topic in subscribed for number in range(count)
    )


@settings(deadline=None)
@given(groups())
def test_uniform_no_move_between_two_members_would_balance_them_better(
    group: tuple[dict[uuid.UUID, int], list[Subscriber]],
) -> None:
    topics, members = group
    assignment = assign_uniform(topics, members)
    load = loads(assignment)
    for giver in members:
        for taker in members:
            if assignment[giver.member_id].keys() & taker.topics:
                assert load[giver.member_id] - load[taker.member_id] <= 1


@settings(deadline=None)
@given(counts, st.integers(1, 9))
def test_uniform_members_of_one_subscription_differ_by_one_at_most(topics: dict[uuid.UUID, int], size: int) -> None:
    members = [subscriber(f"m{number}", frozenset(IDS)) for number in range(size)]
    load = loads(assign_uniform(topics, members)).values()
    assert max(load) - min(load) <= 1


@settings(deadline=None)
@given(groups())
def test_uniform_is_settled_once_assigned(group: tuple[dict[uuid.UUID, int], list[Subscriber]]) -> None:
    topics, members = group
    once = assign_uniform(topics, members)
    assert assign_uniform(topics, [member._replace(current=once[member.member_id]) for member in members]) == once


@settings(deadline=None, max_examples=examples(200))
@given(counts, st.integers(1, 8), st.integers(-3, 3))
def test_uniform_moves_no_more_than_balance_asks_for(topics: dict[uuid.UUID, int], size: int, change: int) -> None:
    everything = frozenset(IDS)
    before = assign_uniform(topics, [subscriber(f"m{number}", everything) for number in range(size)])
    names = [f"m{number}" for number in range(max(1, size + change))]
    after = assign_uniform(topics, [subscriber(name, everything, before.get(name, {})) for name in names])
    kept = sum(
        len(after[name].get(topic, frozenset()) & before[name].get(topic, frozenset()))
        for name in names
        if name in before
        for topic in topics
    )
    quota, extra = divmod(sum(topics.values()), len(names))
    had = sorted((loads(before).get(name, 0) for name in names), reverse=True)
    assert kept == sum(min(load, quota + (place < extra)) for place, load in enumerate(had))


def test_uniform_those_who_were_first_keep_the_first_partitions() -> None:
    topic = IDS[0]
    held: dict[str, Partitions] = {}
    expected = [[{0, 1, 2, 3, 4, 5}], [{0, 1, 2}, {3, 4, 5}], [{0, 1}, {3, 4}, {2, 5}]]  # as with Apache Kafka
    for size, wanted in enumerate(expected, start=1):
        members = [subscriber(f"m{number}", frozenset({topic}), held.get(f"m{number}")) for number in range(size)]
        held = assign_uniform({topic: 6}, members)
        assert [held[f"m{number}"][topic] for number in range(size)] == wanted


def test_uniform_spreads_each_topic() -> None:
    topics = {IDS[0]: 4, IDS[1]: 4}
    first = assign_uniform(topics, [subscriber("a", frozenset(IDS))])
    both = assign_uniform(topics, [subscriber("a", frozenset(IDS), first["a"]), subscriber("b", frozenset(IDS))])
    assert {topic: len(numbers) for topic, numbers in both["b"].items()} == {IDS[0]: 2, IDS[1]: 2}


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 9))
def test_range_co_partitions_topics_of_equal_size(count: int, size: int) -> None:
    members = [subscriber(f"m{number}", frozenset(IDS[:3])) for number in range(size)]
    for partitions in assign_range(dict.fromkeys(IDS[:3], count), members).values():
        assert len(set(partitions.values())) <= 1
        for numbers in partitions.values():
            assert numbers == frozenset(range(min(numbers), max(numbers) + 1)), "not contiguous"


@pytest.mark.parametrize("name", ASSIGNORS)
def test_static_members_keep_theirs_when_they_come_back_under_other_member_ids(name: str) -> None:
    topics = {IDS[0]: 7}

    def assigned(ids: dict[str, str], held: dict[str, Partitions]) -> dict[str, Partitions]:
        members = [Subscriber(ids[one], one, frozenset(IDS), held.get(one, {})) for one in ("i0", "i1", "i2")]
        result = ASSIGNORS[name](topics, members)
        return {one: result[ids[one]] for one in ids}

    before = assigned({"i0": "a", "i1": "b", "i2": "c"}, {})
    assert assigned({"i0": "z", "i1": "y", "i2": "x"}, before) == before

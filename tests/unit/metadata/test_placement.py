from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from moldau.metadata.placement import UsableBroker, next_of_topic, place, usable_brokers
from moldau.metadata.records import BrokerRecord


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[UsableBroker], int]:
    """Brokers in racks, some of them not active, and a replication factor they can hold."""
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9))
    active = draw(st.lists(st.booleans(), min_size=len(racks), max_size=len(racks)).filter(any))
    brokers = [
        UsableBroker(10 + number, rack, is_on) for number, (rack, is_on) in enumerate(zip(racks, active, strict=True))
    ]
    return brokers, draw(st.integers(1, len(brokers)))


@given(cluster=clusters(), first=st.integers(0, 10_000), count=st.integers(1, 40))
def test_replicas_are_distinct_and_only_active_brokers_lead(
    cluster: tuple[list[UsableBroker], int], first: int, count: int
) -> None:
    brokers, factor = cluster
    active = {broker.broker_id for broker in brokers if broker.is_active}
    for replicas in place(brokers, first, count, factor):
        assert len(replicas) == len(set(replicas)) == factor
        assert replicas[0] in active
        assert len(active.intersection(replicas)) == min(factor, len(active)), "the fenced get what is left over"


@given(cluster=clusters(), first=st.integers(0, 10_000), count=st.integers(1, 40))
def test_leaders_are_even(cluster: tuple[list[UsableBroker], int], first: int, count: int) -> None:
    brokers, factor = cluster
    leaders = Counter(replicas[0] for replicas in place(brokers, first, count, factor))
    led = [leaders[broker.broker_id] for broker in brokers if broker.is_active]
    assert max(led) - min(led) <= 1


@given(cluster=clusters(), first=st.integers(0, 10_000))
def test_a_partition_is_in_as_many_racks_as_can_be(cluster: tuple[list[UsableBroker], int], first: int) -> None:
    brokers, factor = cluster
    brokers = [broker for broker in brokers if broker.is_active]
    factor = min(factor, len(brokers))
    rack_of = {broker.broker_id: broker.rack for broker in brokers}
    sizes = Counter(rack_of.values())
    for replicas in place(brokers, first, 20, factor):
        held = Counter(rack_of[one] for one in replicas)
        assert len(held) == min(factor, len(sizes))
        # No rack holds two more than another that has a broker left.
        assert all(held[full] - held[other] <= 1 for full in held for other in sizes if held[other] < sizes[other])


@given(racks=st.integers(1, 4), size=st.integers(1, 3), rounds=st.integers(1, 4), data=st.data())
def test_racks_of_one_size_share_replicas_evenly(racks: int, size: int, rounds: int, data: st.DataObject) -> None:
    brokers = [UsableBroker(number, f"rack-{number % racks}") for number in range(racks * size)]
    factor = data.draw(st.integers(1, len(brokers)))
    holders = Counter(one for replicas in place(brokers, 0, rounds * len(brokers), factor) for one in replicas)
    assert set(holders.values()) == {rounds * factor}


@pytest.mark.parametrize(
    ("brokers", "problem"),
    [
        ([UsableBroker(1)], "only 1 broker(s) are registered"),
        ([UsableBroker(1, is_active=False), UsableBroker(2, is_active=False)], "All brokers are currently fenced."),
    ],
)
def test_what_cannot_be_placed_is_refused_with_kafkas_code(brokers: list[UsableBroker], problem: str) -> None:
    with pytest.raises(KafkaError) as caught:
        place(brokers, 0, 1, 2)
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert problem in caught.value.message


def test_a_topic_goes_on_after_its_own_partitions() -> None:
    brokers = [UsableBroker(1, "a"), UsableBroker(2, "a"), UsableBroker(3, "b")]
    assert [replicas[0] for replicas in place(brokers, 0, 3, 1)] == [1, 3, 2]
    assert [replicas[0] for replicas in place(brokers, next_of_topic(brokers, 3, 2), 2, 1)] == [1, 3]


def test_a_node_that_nobody_registered_hosts_everything() -> None:
    assert usable_brokers(MetadataImage(), 7) == [UsableBroker(7)]
    image = MetadataImage().apply([BrokerRecord(2, 1, (), "r", fenced=True), BrokerRecord(1, 2, ())])
    assert usable_brokers(image, 7) == [UsableBroker(1), UsableBroker(2, "r", is_active=False)]

"""When a cluster has settled after a fault: what each broker tells of the partitions."""

from __future__ import annotations

from moldau.client.cluster import PartitionMetadata
from soak.cluster_run import is_in_sync

BEFORE = [PartitionMetadata(0, 1, 0, (1, 2, 3), (1, 2, 3))]
MOVED = [PartitionMetadata(0, 3, 1, (1, 2, 3), (2, 3))]
BACK = [PartitionMetadata(0, 3, 1, (1, 2, 3), (1, 2, 3))]


def test_all_brokers_tell_of_whole_in_sync_sets() -> None:
    assert is_in_sync([BACK, BACK, BACK])
    assert not is_in_sync([MOVED, MOVED, MOVED])


def test_a_leader_that_has_not_heard_of_its_successor_does_not_count() -> None:
    assert not is_in_sync([BEFORE, MOVED, MOVED])
    assert not is_in_sync([BEFORE, BACK, BACK])


def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    assert not is_in_sync([BACK, [], BACK])
    assert not is_in_sync([[], [], []])


def test_a_partition_without_a_leader_is_waited_for() -> None:
    headless = [BACK[0]._replace(leader=-1)]
    assert not is_in_sync([headless, headless, headless])

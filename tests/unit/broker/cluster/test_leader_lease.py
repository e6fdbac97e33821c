"""A leader that may have a successor answers no reads."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.cluster.leader_lease import DEPOSED_GRACE_S, LeaderLease
from moldau.errors import ErrorCode, KafkaError

SESSION_S = 9.0


class Node:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.config = SimpleNamespace(broker_session_timeout_ms=int(SESSION_S * 1000))
        self.controller = SimpleNamespace(is_active=False, majority_contact_s=math.inf, deposed_s=0.0)


class Partition:
    name, is_leader, replicas = "t-0", True, (1, 2, 3)
    hears = True

    def has_follower_contact(self, within_ms: int) -> bool:
        return self.hears


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def lease(node: Node) -> LeaderLease:
    return LeaderLease(node, node.controller, lambda: node.now_s)  # type: ignore[arg-type]


def is_trusted(lease: LeaderLease, **values: Any) -> bool:
    partition = Partition()
    vars(partition).update(values)
    if not lease.may_be_expired():
        return True
    try:
        lease.check(partition)
    except KafkaError as error:
        return error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER
    return True


def pass_time(node: Node, lease: LeaderLease, elapsed_s: float) -> None:
    """Time in which the process was awake."""
    for _ in range(int(elapsed_s)):
        node.now_s += 1
        lease._tick(node.now_s)


def test_one_that_hears_of_the_controller_answers(node: Node, lease: LeaderLease) -> None:
    assert is_trusted(lease)
    pass_time(node, lease, 20)
    lease.on_heartbeat_answered(node.now_s - 1)
    assert is_trusted(lease, hears=False)


def test_one_that_slept_answers_nobody_until_the_controller_answers_it(node: Node, lease: LeaderLease) -> None:
    sent_before_s = node.now_s
    node.now_s += SESSION_S
    assert not is_trusted(lease), "before any timer ran, and though a follower's old fetch came first"
    lease.on_heartbeat_answered(sent_before_s)
    assert not is_trusted(lease)
    lease.on_heartbeat_answered(node.now_s)
    assert is_trusted(lease)


def test_a_controller_that_slept_gives_the_store_time_to_depose_it(node: Node, lease: LeaderLease) -> None:
    node.controller.is_active = True
    node.now_s += SESSION_S
    assert not is_trusted(lease)
    lease.on_heartbeat_answered(node.now_s)
    assert not is_trusted(lease), "it answered its own heartbeat"
    node.now_s += DEPOSED_GRACE_S
    lease.on_heartbeat_answered(node.now_s)
    assert is_trusted(lease)


def test_without_a_controller_a_leader_goes_on_while_followers_fetch_from_it(node: Node, lease: LeaderLease) -> None:
    pass_time(node, lease, 60)
    assert is_trusted(lease, hears=True)
    assert not is_trusted(lease, hears=False)


def test_what_nobody_else_can_lead_is_read_in_any_case(node: Node, lease: LeaderLease) -> None:
    node.now_s += SESSION_S
    assert is_trusted(lease, replicas=(1,))
    assert is_trusted(lease, is_leader=False), "a follower answers with what it knows to be committed"


def test_a_deposed_controller_answers_nobody_until_its_successor_answers_it(node: Node, lease: LeaderLease) -> None:
    node.controller.is_active = True
    lease.on_heartbeat_answered(node.now_s)
    node.now_s += 0.1
    node.controller.is_active = False
    node.controller.deposed_s = node.now_s
    assert not is_trusted(lease)
    node.now_s += 0.1
    lease.on_heartbeat_answered(node.now_s)
    assert is_trusted(lease)


def test_a_controller_that_a_majority_may_have_replaced_answers_no_reads(node: Node, lease: LeaderLease) -> None:
    node.controller.is_active, node.controller.majority_contact_s = True, node.now_s
    pass_time(node, lease, 6)
    lease.on_heartbeat_answered(node.now_s)
    assert is_trusted(lease, hears=False), "the others have to wait for longer than that"
    pass_time(node, lease, 2)
    lease.on_heartbeat_answered(node.now_s)
    assert not is_trusted(lease), "its own heartbeats prove nothing, nor does a follower that is cut off with it"
    node.controller.majority_contact_s = node.now_s
    lease.on_heartbeat_answered(node.now_s)
    assert is_trusted(lease, hears=False)

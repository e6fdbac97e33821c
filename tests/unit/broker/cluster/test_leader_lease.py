"""A leader that may have a successor answers no reads."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.cluster.leader_lease import DEPOSED_WITHIN_S, Vigil
from moldau.errors import ErrorCode, KafkaError

SESSION_S = 9.0


class Node:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.loop = SimpleNamespace(time=lambda: self.now_s)
        self.config = SimpleNamespace(broker_session_timeout_ms=int(SESSION_S * 1000))
        self.controller = SimpleNamespace(is_active=False, backed_s=math.inf)


class Partition:
    name, is_leader, replicas = "t-0", True, (1, 2, 3)
    hears = True

    def hears_a_follower(self, within_ms: int) -> bool:
        return self.hears


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def vigil(node: Node) -> Vigil:
    return Vigil(node)  # type: ignore[arg-type]


def is_trusted(vigil: Vigil, **values: Any) -> bool:
    partition = Partition()
    vars(partition).update(values)
    if not vigil.is_in_doubt():
        return True
    try:
        vigil.check(partition)  # type: ignore[arg-type]
    except KafkaError as error:
        return error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER
    return True


def pass_time(node: Node, vigil: Vigil, elapsed_s: float) -> None:
    """Time in which the process was awake."""
    for _ in range(int(elapsed_s)):
        node.now_s += 1
        vigil._note(node.now_s)


def test_one_that_hears_of_the_controller_answers(node: Node, vigil: Vigil) -> None:
    assert is_trusted(vigil)
    pass_time(node, vigil, 20)
    vigil.heard(node.now_s - 1)
    assert is_trusted(vigil, hears=False)


def test_one_that_slept_answers_nobody_until_the_controller_answers_it(node: Node, vigil: Vigil) -> None:
    sent_before_s = node.now_s
    node.now_s += SESSION_S
    assert not is_trusted(vigil), "before any timer ran, and though a follower's old fetch came first"
    vigil.heard(sent_before_s)
    assert not is_trusted(vigil)
    vigil.heard(node.now_s)
    assert is_trusted(vigil)


def test_a_controller_that_slept_gives_the_store_time_to_depose_it(node: Node, vigil: Vigil) -> None:
    node.controller.is_active = True
    node.now_s += SESSION_S
    assert not is_trusted(vigil)
    vigil.heard(node.now_s)
    assert not is_trusted(vigil), "it answered its own heartbeat"
    node.now_s += DEPOSED_WITHIN_S
    vigil.heard(node.now_s)
    assert is_trusted(vigil)


def test_without_a_controller_a_leader_goes_on_while_followers_fetch_from_it(node: Node, vigil: Vigil) -> None:
    pass_time(node, vigil, 60)
    assert is_trusted(vigil, hears=True)
    assert not is_trusted(vigil, hears=False)


def test_what_nobody_else_can_lead_is_read_in_any_case(node: Node, vigil: Vigil) -> None:
    node.now_s += SESSION_S
    assert is_trusted(vigil, replicas=(1,))
    assert is_trusted(vigil, is_leader=False), "a follower answers with what it knows to be committed"


def test_a_deposed_controller_answers_nobody_until_its_successor_answers_it(node: Node, vigil: Vigil) -> None:
    node.controller.is_active = True
    vigil.heard(node.now_s)
    node.now_s += 0.1
    node.controller.is_active = False
    vigil.deposed()
    assert not is_trusted(vigil)
    node.now_s += 0.1
    vigil.heard(node.now_s)
    assert is_trusted(vigil)


def test_a_controller_that_a_majority_may_have_replaced_answers_no_reads(node: Node, vigil: Vigil) -> None:
    node.controller = SimpleNamespace(is_active=True, backed_s=node.now_s)
    pass_time(node, vigil, 6)
    vigil.heard(node.now_s)
    assert is_trusted(vigil, hears=False), "the others have to wait for longer than that"
    pass_time(node, vigil, 2)
    vigil.heard(node.now_s)
    assert not is_trusted(vigil), "its own heartbeats prove nothing, nor does a follower that is cut off with it"
    node.controller.backed_s = node.now_s
    vigil.heard(node.now_s)
    assert is_trusted(vigil, hears=False)

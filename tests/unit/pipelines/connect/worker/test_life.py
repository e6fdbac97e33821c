"""What a worker does next with a connector, and what it says about it."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.worker.life import Action, Stage, Teller, next_action
from moldau.pipelines.worker.records import Target

CONNECT_STATES = {"UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "RESTARTING", "STOPPED"}
NONE, START, END, FORGET = Action.NONE, Action.START, Action.END, Action.FORGET
UNWANTED = [NONE, END, END, NONE, FORGET]


@pytest.mark.parametrize(
    ("wanted", "actions"),
    [
        (Target.STARTED, [START, NONE, END, NONE, NONE]),
        (Target.PAUSED, UNWANTED),
        (Target.STOPPED, UNWANTED),
        (None, UNWANTED),
    ],
)
def test_the_table_of_actions(wanted: Target | None, actions: list[Action]) -> None:
    assert [next_action(wanted, stage) for stage in Stage] == actions


class Query:
    def __init__(self, state: State, reason: str = "") -> None:
        self.state = state
        self.reason = reason


def tasks(wanted: Target, *queries: Any, count: int = 0) -> dict[int, tuple[str, str | None]]:
    told = Teller("w", 1).tasks(wanted, queries, count)
    return {number: (status.state, status.trace) for number, status in told.items()}


def test_every_state_of_a_query_is_one_that_connects_clients_know() -> None:
    assert {tasks(Target.STARTED, Query(state))[0][0] for state in State} <= CONNECT_STATES


def test_a_task_that_fails_says_why_and_that_it_starts_again() -> None:
    assert tasks(Target.STARTED, Query(State.RUNNING), Query(State.RETRYING, "no route to host")) == {
        0: ("RUNNING", None),
        1: ("RESTARTING", "no route to host"),
    }


def test_a_paused_connector_has_its_tasks_and_a_stopped_one_has_none() -> None:
    assert tasks(Target.PAUSED, count=2) == {0: ("PAUSED", None), 1: ("PAUSED", None)}
    assert tasks(Target.STOPPED, Query(State.RUNNING), count=2) == {}


@pytest.mark.parametrize(
    ("wanted", "stage", "error", "state"),
    [
        (Target.STARTED, Stage.ABSENT, None, "UNASSIGNED"),
        (Target.STARTED, Stage.CURRENT, None, "RUNNING"),
        (Target.STARTED, Stage.ABSENT, "there is no such class", "FAILED"),
        (Target.PAUSED, Stage.ENDING, None, "PAUSED"),
        (Target.STOPPED, Stage.ABSENT, "old", "STOPPED"),
    ],
)
def test_the_state_of_a_connector(wanted: Target, stage: Stage, error: str | None, state: str) -> None:
    assert Teller("w", 1).connector(wanted, stage, error).state == state

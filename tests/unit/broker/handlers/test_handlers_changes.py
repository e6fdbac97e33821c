"""Changes of metadata: every key gets an outcome, whatever became of the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from moldau.broker.handlers.admin.metadata_changes import change_each
from moldau.errors import ErrorCode, KafkaError


async def test_a_controller_that_was_deposed_before_it_planned_refuses_every_key() -> None:
    async def change(_plan: Any) -> None:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is the controller")

    broker: Any = SimpleNamespace(controller=SimpleNamespace(change=change))
    outcomes = await change_each(broker, {"one": lambda _: [], "two": lambda _: []})
    assert {key: getattr(outcome, "code", None) for key, outcome in outcomes.items()} == dict.fromkeys(
        ("one", "two"), ErrorCode.NOT_CONTROLLER
    )

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.client.fake_broker import FakeBroker


@pytest.fixture
def fake_broker() -> Iterator[Callable[..., FakeBroker]]:
    """Makes fake brokers that are gone after the test."""
    brokers: list[FakeBroker] = []

    def make(*args: Any, **kwargs: Any) -> FakeBroker:
        brokers.append(FakeBroker(*args, **kwargs))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()

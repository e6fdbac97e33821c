"""For all tests. The fixtures of `moldau.testing.plugin` are here by themselves: the package is installed."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples

# How long an example takes is the machine's affair: on a busy one a slow example is no failed one.
settings.register_profile(
    "moldau", deadline=None, max_examples=examples(), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("moldau")


@pytest.fixture(autouse=True, scope="session")
def _no_broker_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands that look for running brokers find those of the tests, never one that the developer runs."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))

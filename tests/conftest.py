"""For all tests. The fixtures of `moldau.testing.plugin` are here by themselves: the package is installed."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_broker_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands that look for running brokers find those of the tests, never one that the developer runs."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("runtime"))

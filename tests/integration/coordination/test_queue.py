"""A queue is worked off, each record accepted once, over kill -9 of the broker and of the workers.

The long run is `python -m soak --queue 20000`.
"""

from __future__ import annotations

from pathlib import Path

from soak.broker_process import BrokerProcess
from soak.queue import run_queue


def test_a_queue_is_worked_off_over_kills_of_broker_and_workers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        outcome = run_queue(broker, records=2000, seed=8, pause_s=(0.3, 0.8))
        assert outcome.problems == []
        assert outcome.accepted + outcome.unconfirmed == 2000
        assert outcome.broker_kills + outcome.worker_kills > 1
        assert "Traceback" not in broker.output()

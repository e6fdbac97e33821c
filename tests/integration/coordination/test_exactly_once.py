"""Consume, transform, produce: each record once, over kill -9 of the broker and of the programs.

The long run is `python -m soak --exactly-once 20000`.
"""

from __future__ import annotations

from pathlib import Path

from soak.broker_process import BrokerProcess
from soak.exactly_once import run_exactly_once


def test_records_are_copied_exactly_once_over_kills_of_broker_and_copiers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        outcome = run_exactly_once(broker, records=4000, seed=5, pause_s=(0.5, 1.5))
        assert outcome.problems == []
        assert outcome.records == 4000
        assert outcome.broker_kills + outcome.copier_kills > 1
        assert "Traceback" not in broker.output()

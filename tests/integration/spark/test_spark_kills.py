"""A Spark query copies exactly once, over kill -9 of its driver, its workers and the broker.

The long run is `python -m soak --spark 100000`: twenty kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.broker_process import BrokerProcess
from soak.spark_copy import UNKILLED, run_spark_copy


@pytest.mark.timeout(300)
def test_a_query_copies_exactly_once_over_kills_of_driver_workers_and_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        outcome = run_spark_copy(broker, records=10_000, kills_min=3, seed=5)
        assert outcome.problems == []
        assert outcome.records == 10_000
        assert outcome.kills.total() - outcome.kills[UNKILLED] >= 2
        assert "Traceback" not in broker.output()

"""Hosts with addresses of their own: packets are dropped, and nobody is told."""

from __future__ import annotations

import pytest

from soak.hosts import obstacle
from soak.hosts_run import run_faults, running

SHORT = {
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "zookeeper.session.timeout.ms": 9_000,
}


@pytest.mark.timeout(300)
def test_a_controller_whose_host_vanishes_is_replaced_and_brokers_start_beside_a_silent_zookeeper() -> None:
    pytest.importorskip("pyspark", reason="ZooKeeper's jars come with pyspark")
    if why := obstacle():
        pytest.skip(why)
    with running(properties=SHORT) as cluster:
        _, problems = run_faults(cluster, ["controller cut", "restarted beside a cut"], seed=1, fault_min_s=0.0)
        assert not problems  # in here: what the brokers wrote is kept then

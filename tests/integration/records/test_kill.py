"""Nothing acknowledged is lost, doubled or disordered: hard kills and clean stops under the load of three clients."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from soak.broker_process import BrokerProcess
from soak.check import check_topic
from soak.load import AioKafkaWriter, ConfluentWriter, KafkaPythonWriter, Writer
from soak.rounds import Result, run_rounds
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import NewTopic


@pytest.fixture(autouse=True)
def _quiet_clients(caplog: pytest.LogCaptureFixture) -> None:
    """Clients complain, rightly, of a broker that is away."""
    for name in ("kafka", "aiokafka"):
        caplog.set_level(logging.CRITICAL, logger=name)


def assert_kept(result: Result, broker: BrokerProcess) -> None:
    assert result.findings.problems == []
    assert result.findings.records == sum(result.acked.values())
    assert all(count > 0 for count in result.acked.values())
    assert "Traceback" not in broker.output()


def test_acked_records_survive_kill_minus_nine_once_and_in_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        result = run_rounds(broker, rounds=4, seed=4)
        assert_kept(result, broker)
        assert result.findings.records > 4000


def test_acked_records_survive_clean_stops_under_load(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        result = run_rounds(broker, rounds=3, seed=3, load_s=(0.2, 0.5), end=BrokerProcess.stop)
        assert_kept(result, broker)


def test_acked_records_survive_kill_minus_nine_with_every_record_flushed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"log.flush.interval.messages": 1}) as broker:
        result = run_rounds(broker, rounds=2, seed=2, load_s=(0.3, 0.8))
        assert_kept(result, broker)


def writer_that_was_told(numbers: int) -> Writer:
    writer = ConfluentWriter("w", "", "", 1)
    writer.acked, writer.acked_upto = numbers, numbers - 1
    return writer


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ([0, 1, 2, 3], None),
        ([0, 1, 2, 3, 4], None),  # written, but its answer never came
        ([0, 1, 2], "1 acknowledged records are lost"),
        ([0, 1, 3], "3 too early"),
        ([0, 1, 1, 2, 3], "1 again"),
        ([0, 2, 1, 3], "2 too early"),
    ],
    ids=["whole", "more", "cut", "gap", "double", "disorder"],
)
def test_the_checker_sees_what_is_lost_doubled_or_disordered(
    bootstrap: str, new_topic: NewTopic, written: list[int], problem: str | None
) -> None:
    topic = new_topic()
    CLIENTS[0].produce(bootstrap, topic, [Message(b"w:%d:" % number, partition=0) for number in written])
    findings = check_topic(bootstrap, topic, 1, [writer_that_was_told(4)])
    assert findings.records == len(written)
    if problem is None:
        assert findings.problems == []
    else:
        assert any(problem in found for found in findings.problems), findings.problems


def test_every_client_is_among_the_writers() -> None:
    assert {ConfluentWriter.client, KafkaPythonWriter.client, AioKafkaWriter.client} == {
        client.name for client in CLIENTS
    }

"""Table, JSON and plot of the bench, and the values it sends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import report
from bench.metrics import KAFKA, MOLDAU, Metric, Outcome, Sample, ratio_at_least
from bench.payloads import payloads
from bench.plot import goal_as_times_better
from bench.scenarios import SCENARIOS

RATE = Metric("rate", "requests, four producers", "requests/s", "higher", ratio_at_least(1.5))
MACHINE = {
    "cores": 2,
    "memory_gb": 8,
    "cpu": "a CPU",
    "librdkafka": "2.16.0",
    "python": "3.11.7",
    "date": "2026-01-02T03:04:05+00:00",
    "cores_taken_by_others": 0.02,
}


def example() -> Outcome:
    outcome = Outcome(RATE)
    for moldau, kafka in ((44_000, 25_000), (46_000, 24_000), (45_000, 26_000)):
        outcome.add(MOLDAU, Sample(RATE, moldau))
        outcome.add(KAFKA, Sample(RATE, kafka, client_bound=True))
    return outcome


def results(outcome: Outcome) -> dict[str, Any]:
    return report.as_json(
        [outcome],
        [],
        machine=MACHINE,
        versions={MOLDAU: "0.1.0", KAFKA: "4.3.1"},
        settings={"quick": False, "repeat": 3},
        failures=[],
    )


def test_the_table_shows_values_spread_ratio_goal_and_verdict() -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(report.table("title", "Kafka", [example()]))
    text = console.export_text()
    for part in ("45,000 requests/s ±2 %", "25,000 requests/s ±4 % *", "1.80", "≥ 1.5 × Kafka", "met"):
        assert part in text


def test_the_json_keeps_every_sample() -> None:
    written = json.loads(json.dumps(results(example())))
    (metric,) = written["metrics"]
    assert metric["servers"][MOLDAU]["samples"] == [44_000, 46_000, 45_000]
    assert metric["ratio"] == 1.8
    assert metric["verdict"] == "met"


def test_a_run_leaves_json_and_a_plot(tmp_path: Path) -> None:
    said: list[str] = []
    report.write(tmp_path, results(example()), [example()], said.append)
    assert json.loads((tmp_path / "results.json").read_text())["servers"] == {MOLDAU: "0.1.0", KAFKA: "4.3.1"}
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert len(said) == 2


def test_without_kafka_there_is_nothing_to_plot(tmp_path: Path) -> None:
    alone = Outcome(RATE)
    alone.add(MOLDAU, Sample(RATE, 45_000))
    report.write(tmp_path, results(alone), [alone], lambda _: None)
    assert not (tmp_path / "results.png").exists()


def test_a_busy_machine_is_said_so() -> None:
    quiet = results(example())
    busy = {**quiet, "machine": {**MACHINE, "cores_taken_by_others": 0.8}}
    assert "others took" not in report.summary(quiet)
    assert "others took 0.8 cores" in report.summary(busy)


def test_the_goal_lies_on_the_axis_of_times_better() -> None:
    assert goal_as_times_better(example()) == 1.5


def test_scenarios_and_metrics_have_names_of_their_own() -> None:
    keys = [metric.key for scenario in SCENARIOS for metric in scenario.metrics]
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(keys)) == len(keys)
    assert len(set(names)) == len(names)


def test_payloads_have_the_exact_size_and_differ() -> None:
    values = payloads(100)
    assert {len(value) for value in values} == {100}
    assert len(set(values)) == len(values)
    assert values == payloads(100)

"""Goals and verdicts of the bench."""

from __future__ import annotations

import pytest

from bench.metrics import (
    JVM_BEST,
    KAFKA,
    MOLDAU,
    Better,
    Goal,
    Metric,
    Outcome,
    Sample,
    Verdict,
    at_most,
    ratio_at_least,
    ratio_at_most,
)


def outcome(
    goal: Goal | None,
    moldau: list[float],
    kafka: list[float],
    *,
    better: Better = "lower",
    client_bound: bool = False,
) -> Outcome:
    metric = Metric("key", "title", "ms", better, goal)
    result = Outcome(metric)
    for value in moldau:
        result.add(MOLDAU, Sample(metric, value, client_bound))
    for value in kafka:
        result.add(KAFKA, Sample(metric, value))
    return result


def test_ratio_is_of_the_medians() -> None:
    assert outcome(None, [1.0, 2.0, 30.0], [4.0]).ratio == 0.5


@pytest.mark.parametrize(("moldau", "verdict"), [(0.7, Verdict.MET), (0.71, Verdict.MISSED)])
def test_a_ratio_goal_holds_up_to_its_limit(moldau: float, verdict: Verdict) -> None:
    assert outcome(ratio_at_most(0.7), [moldau], [1.0]).verdict is verdict


def test_a_value_goal_needs_no_kafka() -> None:
    assert outcome(at_most(60), [59.0], []).verdict is Verdict.MET
    assert outcome(at_most(60), [61.0], []).verdict is Verdict.MISSED


def test_a_ratio_goal_without_kafka_is_not_measured() -> None:
    assert outcome(ratio_at_most(0.7), [0.1], []).verdict is Verdict.NOT_MEASURED


def test_a_client_bound_throughput_counts_as_equal_to_kafka() -> None:
    slower = outcome(ratio_at_least(1.0), [0.9], [1.0], better="higher", client_bound=True)
    assert slower.verdict is Verdict.CLIENT_BOUND


def test_a_busy_client_is_no_excuse_for_a_goal_above_kafka() -> None:
    slower = outcome(ratio_at_least(1.5), [1.4], [1.0], better="higher", client_bound=True)
    assert slower.verdict is Verdict.MISSED


def test_client_bound_is_decided_by_the_majority_of_rounds() -> None:
    result = outcome(ratio_at_least(1.0), [0.9, 0.9], [1.0], better="higher")
    result.add(MOLDAU, Sample(result.metric, 0.9, client_bound=True))
    assert not result.is_client_bound(MOLDAU)
    assert result.verdict is Verdict.MISSED


def test_times_better_is_above_one_when_moldau_is_better_either_way() -> None:
    assert outcome(None, [1.0], [4.0], better="lower").times_better == 4.0
    assert outcome(None, [4.0], [1.0], better="higher").times_better == 4.0


def test_goals_read_as_the_plan_writes_them() -> None:
    assert ratio_at_most(0.7).text("CPU s", KAFKA) == "≤ 0.7 × Kafka"
    assert ratio_at_most(0.7).text("CPU s", JVM_BEST) == "≤ 0.7 × JVM at best"
    assert at_most(60).text("MB", KAFKA) == "≤ 60 MB"

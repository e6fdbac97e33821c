"""What is measured and what is promised: metrics, goals, samples and the verdict on them. No I/O.

A scenario declares its metrics with the goal beside each; the runner collects samples per server into
`Outcome`s; an outcome knows its medians, its ratio and whether the goal is met.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from bench.stats import median, spread_percent

MOLDAU = "moldau"
KAFKA = "kafka"
# Spark's own Kafka connector, and the same with its best settings: what our Spark source is compared with.
JVM = "jvm"
JVM_BEST = "jvm_best"
# The same job as a Kafka Streams program: what pipelines are compared with, too.
STREAMS = "streams"
SHORT_NAMES = {KAFKA: "Kafka", JVM: "JVM", JVM_BEST: "JVM at best", STREAMS: "Kafka Streams"}

Better = Literal["lower", "higher"]


class Verdict(StrEnum):
    MET = "met"
    CLIENT_BOUND = "met (client-bound)"
    MISSED = "missed"
    NOT_MEASURED = "not measured"
    NO_GOAL = "no goal"


@dataclass(frozen=True)
class Goal:
    """A promise: a limit on Moldau's own value, or on the ratio Moldau / rival."""

    of: Literal["value", "ratio"]
    limit: float
    better: Better

    def holds(self, number: float) -> bool:
        return number <= self.limit if self.better == "lower" else number >= self.limit

    def text(self, unit: str, rival: str) -> str:
        sign = "≤" if self.better == "lower" else "≥"
        if self.of == "ratio":
            return f"{sign} {self.limit:g} × {SHORT_NAMES[rival]}"
        return f"{sign} {self.limit:g} {unit}".rstrip()


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    unit: str
    better: Better
    goal: Goal | None = None
    rival: str = KAFKA

    @property
    def goal_text(self) -> str | None:
        return self.goal.text(self.unit, self.rival) if self.goal else None

    @property
    def compares(self) -> bool:
        """Whether one server's value over the other's says anything: of factors and counts it does not."""
        return self.unit not in ("×", "")


def at_most(limit: float) -> Goal:
    return Goal("value", limit, "lower")


def at_least(limit: float) -> Goal:
    return Goal("value", limit, "higher")


def ratio_at_most(limit: float) -> Goal:
    return Goal("ratio", limit, "lower")


def ratio_at_least(limit: float) -> Goal:
    return Goal("ratio", limit, "higher")


@dataclass(frozen=True)
class Sample:
    """One measured value. `client_bound`: the client was the limit, so the broker could have done more.

    `of` names what was measured where that is not the server.
    """

    metric: Metric
    value: float
    client_bound: bool = False
    of: str | None = None


@dataclass
class Outcome:
    """All samples of one metric, of Moldau and its rival."""

    metric: Metric
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, server: str, sample: Sample) -> None:
        self.samples.setdefault(server, []).append(sample)

    def values(self, server: str) -> list[float]:
        return [sample.value for sample in self.samples.get(server, [])]

    def median(self, server: str) -> float | None:
        values = self.values(server)
        return median(values) if values else None

    def spread_percent(self, server: str) -> float:
        return spread_percent(self.values(server))

    def is_client_bound(self, server: str) -> bool:
        """By majority: one odd round does not decide."""
        samples = self.samples.get(server, [])
        return sum(sample.client_bound for sample in samples) * 2 > len(samples)

    @property
    def ratio(self) -> float | None:
        moldau, rival = self.median(MOLDAU), self.median(self.metric.rival)
        if not self.metric.compares or moldau is None or not rival:
            return None
        return moldau / rival

    @property
    def times_better(self) -> float | None:
        """The ratio turned so that more than 1 always means that Moldau does better."""
        if not self.ratio:
            return None
        return self.ratio if self.metric.better == "higher" else 1 / self.ratio

    @property
    def verdict(self) -> Verdict:
        goal = self.metric.goal
        if goal is None:
            return Verdict.NO_GOAL
        number = self.ratio if goal.of == "ratio" else self.median(MOLDAU)
        if number is None:
            return Verdict.NOT_MEASURED
        if goal.holds(number):
            return Verdict.MET
        # As fast as the client can go is as fast as it gets; more than Kafka's speed it does not prove.
        if goal == ratio_at_least(1.0) and self.is_client_bound(MOLDAU):
            return Verdict.CLIENT_BOUND
        return Verdict.MISSED

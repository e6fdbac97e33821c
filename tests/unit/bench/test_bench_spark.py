"""The Spark part of the bench: which jars, which metrics, and whose CPU."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from bench import jvm_connector
from bench.metrics import JVM, JVM_BEST, KAFKA, MOLDAU, Outcome
from bench.scenarios.spark import SparkThroughput, expect_equal
from bench.tree_cpu import TreeCpu, spent

NAMESPACE = "{http://maven.apache.org/POM/4.0.0}"


def test_the_connector_s_jars_come_without_what_spark_has() -> None:
    dependencies = ElementTree.fromstring(jvm_connector.pom()).iter(f"{NAMESPACE}dependency")
    excluded = {
        each.findtext(f"{NAMESPACE}artifactId"): each.findtext(f".//{NAMESPACE}exclusion/{NAMESPACE}artifactId")
        for each in dependencies
    }
    assert excluded == dict.fromkeys((artifact for _, artifact, _ in jvm_connector.ARTIFACTS), "*")


def test_one_pass_of_ours_counts_against_each_rival() -> None:
    scenario = SparkThroughput("plain", 2, ("read",), servers=(KAFKA,))
    outcomes = {metric.key: Outcome(metric) for metric in scenario.metrics}
    for connector, seconds in ((MOLDAU, 1.0), (JVM, 4.0), (JVM_BEST, 2.0)):
        measured = {"workload": "read", "connector": connector, "seconds": seconds, "cpu_s": seconds}
        for sample in scenario._samples(KAFKA, 1_000_000, measured):
            outcomes[sample.metric.key].add(str(sample.of), sample)
    ratios = [(outcome.metric.rival, outcome.metric.unit, outcome.ratio) for outcome in outcomes.values()]
    assert ratios == [(JVM, "rows/s", 4.0), (JVM_BEST, "rows/s", 2.0), (JVM, "CPU s", 0.25)]
    assert [outcome.verdict.value for outcome in outcomes.values()] == ["met", "met", "no goal"]


@pytest.mark.parametrize(
    ("ours", "complaint"), [([999, 7], "999"), ([1000, 8], "different rows")], ids=["a row is missing", "rows differ"]
)
def test_connectors_that_read_different_things_are_not_compared(ours: list[int], complaint: str) -> None:
    expect_equal({MOLDAU: [1000, 7], JVM: [1000, 7]}, 1000)
    with pytest.raises(AssertionError, match=complaint):
        expect_equal({MOLDAU: ours, JVM: [1000, 7]}, 1000)


def test_a_process_that_ended_meanwhile_keeps_what_it_had_spent() -> None:
    assert spent({1: 10.0, 2: 5.0}, {1: 11.0, 2: 5.5, 3: 2.0}) == 3.5


def test_the_cpu_of_children_is_seen_while_they_live() -> None:
    burn = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    with TreeCpu() as cpu:
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert 0.1 < cpu.seconds < 1.0

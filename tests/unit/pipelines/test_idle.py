"""Which source of a query waits for new records, and for whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moldau.pipelines.engine.idle import POLLING_DELAY, WAIT_MS, idle_settings, idle_waits
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline, Source, Step


def topic(name: str, **options: str) -> Source:
    given = {"topic": name, **{option.replace("_", "."): value for option, value in options.items()}}
    return Source(name, "topic", {option: Given(value) for option, value in given.items()})


def waits(*sources: Source, inputs: tuple[str, ...] = (), has_trigger: bool = False) -> dict[str, dict[str, Any]]:
    step = Step("all_of_them", sql="", inputs=(*(source.name for source in sources), *inputs))
    return idle_waits(Pipeline("p", sources, (step,)), step.name, has_trigger=has_trigger)


def test_the_first_topic_waits_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "b")
    assert waits(topic("a")) == {"a": {"idle_wait_ms": WAIT_MS, "idle_wait_topics": ()}}
    second = replace(topic("b"), options={"topic": Given("${env:TOPIC}")})
    assert waits(topic("a"), second) == {"a": {"idle_wait_ms": WAIT_MS, "idle_wait_topics": ("b",)}}
    assert waits(topic("a", maxOffsetsPerTrigger="5")), "a source alone knows how far it has read"
    assert idle_settings(waits(topic("a"))) == {}


def test_tables_are_no_streams_to_wait_for() -> None:
    assert waits(topic("table", static="true"), topic("a")) == {"a": {"idle_wait_ms": WAIT_MS, "idle_wait_topics": ()}}


def test_a_query_with_other_sources_or_a_trigger_does_not_wait() -> None:
    lines = Source("lines", "lines", {})
    no_waits = [
        waits(topic("a"), lines),
        waits(topic("a"), topic("b", maxOffsetsPerTrigger="5")),
        waits(topic("a"), topic("b", kafka_bootstrap_servers="elsewhere:9092")),
        waits(topic("a"), inputs=("spark",)),
        waits(topic("a"), has_trigger=True),
    ]
    assert no_waits == [{}] * 5
    assert idle_settings({}) == {POLLING_DELAY: "100ms"}

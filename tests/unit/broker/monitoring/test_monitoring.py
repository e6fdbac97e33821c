"""What the broker measures of itself, and the page that lists it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker import turns
from moldau.broker.monitoring import group_lag
from moldau.broker.monitoring.group_lag import GroupLag, GroupTopicLag
from moldau.broker.monitoring.health import Health
from moldau.broker.monitoring.metrics import SECONDS, Histogram
from moldau.broker.monitoring.metrics_endpoint import _buckets
from moldau.broker.monitoring.metrics_reference import render
from moldau.broker.monitoring.metrics_table import HISTOGRAMS, METRICS
from moldau.coordinators.effects import Effects
from moldau.coordinators.offsets.commits import Commit, Offset, commit
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, request_schema
from moldau.wire.topic_partition import TopicPartition
from tests.unit.broker.offline import OfflineBroker, StartOffline, until


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.0005, 0.0006, 1.0, 99.0):
        histogram.observe(seconds)
    buckets = dict(_buckets(histogram))
    assert buckets["0.0005"] == 2
    assert buckets["0.001"] == 3
    assert buckets["1.0"] == 4
    assert buckets[str(SECONDS[-1])] == 4
    assert buckets["+Inf"] == 5
    assert histogram.sum == pytest.approx(100.0011)


def test_each_metric_is_there_once_and_explained() -> None:
    names = Counter(metric.name for metric in (*METRICS, *HISTOGRAMS))
    assert max(names.values()) == 1
    assert all(metric.help.endswith(".") for metric in (*METRICS, *HISTOGRAMS))


def test_the_page_on_monitoring_is_the_generated_one() -> None:
    page = Path(__file__).parents[4] / "docs" / "monitoring.md"
    assert page.read_text(encoding="utf-8") == render(), (
        "run: python -m moldau.broker.monitoring.metrics_reference > docs/monitoring.md"
    )


async def test_requests_are_measured_whether_they_are_answered_at_once_or_later(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    measured = offline_broker.node.metrics.latencies
    assert sum(measured[ApiKey.CREATE_TOPICS].counts) == 1, "one that waits"
    await offline_broker.ask(ApiKey.API_VERSIONS, 0, lambda schema: schema.ApiVersionsRequest())
    assert sum(measured[ApiKey.API_VERSIONS].counts) == 1, "one that does not"
    assert measured[ApiKey.CREATE_TOPICS].sum > 0


async def test_the_lag_of_a_group_is_what_lies_between_its_offsets_and_the_ends(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = offline_broker.node
    await node.groups.ready()
    for topic in ("t", "other"):
        await offline_broker.create(topic, partitions=2)
    for partition in range(2):
        offline_broker.write("t", 10, partition)
    offline_broker.write("other", 3)
    asked = {
        "far": [Offset("t", 0, 2), Offset("t", 1, 5), Offset("other", 0, 3), Offset("gone", 0, 7)],
        "near": [Offset("t", 0, 9)],
    }

    def committing(request: Commit) -> Callable[..., Effects]:
        return lambda shard, waiter, now: commit(shard, waiter, request, now)

    for group_id, offsets in asked.items():
        node.groups.ask(group_id, committing(Commit(group_id, "", None, -1, offsets)))
    lag = GroupLag(node)
    await lag.measure()
    assert lag.series == [
        GroupTopicLag(13, "far", "t"),
        GroupTopicLag(1, "near", "t"),
        GroupTopicLag(0, "far", "other"),
    ]
    assert lag.left_off == 0
    monkeypatch.setattr(group_lag, "SERIES_MAX", 1)
    await lag.measure()
    assert (lag.series, lag.left_off) == ([GroupTopicLag(13, "far", "t")], 2)


class Watched(str):
    """A name that counts how often it is looked at: a measure of work that needs no clock."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Watched.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Watched.looks += 1
        return super().__eq__(other)

    def __lt__(self, other: str) -> bool:
        Watched.looks += 1
        return super().__lt__(other)


async def test_the_lag_of_many_groups_is_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(group_lag, "SERIES_MAX", 10)
    names = [Watched(f"group-{number}") for number in range(1_000)]
    offset = SimpleNamespace(offset=5)
    table = SimpleNamespace(groups=lambda: names, of_group=lambda name: [((Watched("t"), 0), offset)])
    node: Any = SimpleNamespace(
        groups=SimpleNamespace(shards=lambda: [(0, SimpleNamespace(offsets=table))]),
        logs=SimpleNamespace(get=lambda *_: SimpleNamespace(high_watermark=12)),
        metadata=SimpleNamespace(image=SimpleNamespace(topics={})),
        turns=turns.Turns(asyncio.to_thread, perf_counter),
    )
    lag = GroupLag(node)
    measuring = asyncio.ensure_future(lag.measure())
    most = 0
    while not measuring.done():
        Watched.looks = 0
        await asyncio.sleep(0)
        most = max(most, Watched.looks)
    await measuring
    assert (len(lag.series), lag.left_off) == (10, 990)
    assert most < len(names) / 2, "names looked at between two passes of the loop"


async def test_other_brokers_are_asked_for_the_ends_of_some_partitions_at_a_time(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = offline_broker.node
    await offline_broker.create("t", partitions=7)
    wanted = [TopicPartition("t", index) for index in range(7)]
    asked: list[list[int]] = []

    async def ask(_: int, key: ApiKey, build: Callable[[Schema], Any], **__: Any) -> Any:
        request = build(request_schema(key, 1))
        asked.append([one.partition_index for topic in request.topics for one in topic.partitions])
        answers = [SimpleNamespace(partition_index=index, offset=index, error_code=0) for index in asked[-1]]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=answers)])

    monkeypatch.setattr(group_lag, "ASK_MAX", 3)
    monkeypatch.setattr(node.logs, "get", lambda *_: None)
    monkeypatch.setattr(node.peers, "ask", ask)
    assert await GroupLag(node)._ends(wanted) == {("t", index): index for index in range(7)}
    assert asked == [[0, 1, 2], [3, 4, 5], [6]]


async def test_a_broker_says_why_it_is_not_ready(start_offline: StartOffline) -> None:
    node = start_offline().node
    health = Health(node)
    assert health.why_not_ready() == []
    node.is_serving.clear()
    assert health.why_not_ready() == ["the broker does not serve clients yet"]
    node.is_open = False
    node.is_closing = True
    assert health.why_not_ready() == ["the broker is stopping", "the logs are not loaded yet"]
    assert health.why_unhealthy() == []
    for log_dir in node.logs.log_dirs:
        log_dir.take_offline("a test")
    assert health.why_unhealthy() == ["every log directory is offline"]


async def test_metadata_that_is_not_in_force_for_long_makes_a_broker_unready(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = offline_broker.node
    health = Health(node)
    monkeypatch.setattr("moldau.broker.monitoring.health.BEHIND_MAX_S", 0.0)
    probing = asyncio.ensure_future(health.probe_forever())
    node.metadata.newest = node.metadata.image.apply([])
    object.__setattr__(node.metadata.newest, "version", node.metadata.image.version + 1)
    await until(health.why_not_ready)
    assert health.why_not_ready() == [
        f"metadata version {node.metadata.image.version} is applied, {node.metadata.image.version + 1} is known"
    ]
    assert sum(node.metrics.loop_delay.counts) > 0
    probing.cancel()

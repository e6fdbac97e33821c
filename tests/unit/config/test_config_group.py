"""A group's own configuration: what it may be, and what it falls back on."""

from __future__ import annotations

import pytest

from moldau.config.broker import BrokerConfig
from moldau.config.group import GroupConfig, duration_ms, validate_group_overrides
from moldau.errors import KafkaError


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H", 3_600_000),
        ("PT1H30M", 5_400_000),
        ("P2D", 172_800_000),
        ("P1DT0.5S", 86_400_500),
        ("pt10s", 10_000),
        ("PT0S", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("-PT1H", None),
        ("1h", None),
        ("PT" + "9" * 400 + "H", None),
    ],
)
def test_durations_are_javas(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms


def test_what_a_group_does_not_set_is_the_brokers() -> None:
    broker, _ = BrokerConfig.from_properties({"group.share.delivery.count.limit": "7"})
    config = GroupConfig.resolve({"share.auto.offset.reset": "earliest"}, broker)
    assert config.share_delivery_count_limit == 7
    assert config.share_auto_offset_reset == "earliest"
    assert config.share_session_timeout_ms == 45_000
    assert not config.reads_committed


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("share.session.timeout.ms", "44999", "group.share.min.session.timeout.ms"),
        ("share.heartbeat.interval.ms", "15001", "group.share.max.heartbeat.interval.ms"),
        ("share.record.lock.duration.ms", "60001", "group.share.max.record.lock.duration.ms"),
        ("consumer.session.timeout.ms", "60001", "group.consumer.max.session.timeout.ms"),
        ("share.auto.offset.reset", "by_duration:1h", "by_duration"),
        ("share.auto.offset.reset", "none", "latest"),
        ("share.isolation.level", "serializable", "read_committed"),
        ("share.delivery.count.limit", "1", "at least 2"),
        ("share.sesion.timeout.ms", "1", "did you mean share.session.timeout.ms"),
    ],
)
def test_values_outside_of_the_brokers_bounds_are_refused(name: str, value: str, why: str) -> None:
    with pytest.raises(KafkaError, match=why):
        validate_group_overrides({name: value}, BrokerConfig())

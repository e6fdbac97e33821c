from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.broker import BrokerConfig
from moldau.config.topic import SYNONYMS, TOPIC_KEYS, TopicConfig, validate_topic_overrides
from moldau.errors import ConfigError, ErrorCode, KafkaError

HOUR_MS = 3_600_000


def broker(**props: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in props.items()})[0]


def refusal(overrides: dict[str, str | None], over: BrokerConfig | None = None) -> str:
    with pytest.raises(KafkaError) as caught:
        validate_topic_overrides(overrides, over)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.message


def test_a_topic_without_overrides_on_a_broker_without_properties_has_the_defaults() -> None:
    assert TopicConfig.resolve({}, BrokerConfig()) == TopicConfig()


def test_topics_without_overrides_share_one_configuration() -> None:
    over = broker()
    assert TopicConfig.resolve({}, over) is TopicConfig.resolve({}, over)


@pytest.mark.parametrize(
    ("props", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log_retention_hours": "2"}, 2 * HOUR_MS),
        ({"log_retention_hours": "2", "log_retention_minutes": "3"}, 180_000),
        ({"log_retention_hours": "2", "log_retention_minutes": "3", "log_retention_ms": "4"}, 4),
        ({"log_retention_hours": "-1"}, -1),
        ({"log_retention_minutes": "-5"}, -1),
        ({"log_retention_ms": "-7"}, -1),
    ],
)
def test_the_shortest_unit_that_is_set_decides_retention(props: dict[str, str], retention_ms: int) -> None:
    assert TopicConfig.resolve({}, broker(**props)).retention_ms == retention_ms
    assert TopicConfig.resolve({"retention.ms": "42"}, broker(**props)).retention_ms == 42


def test_rolling_and_flushing_have_their_fallbacks() -> None:
    config = TopicConfig.resolve({}, broker(log_roll_hours="3", log_flush_scheduler_interval_ms="9"))
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (3 * HOUR_MS, 0, 9)
    config = TopicConfig.resolve(
        {}, broker(log_roll_hours="3", log_roll_ms="5", log_flush_interval_ms="8", log_roll_jitter_ms="1")
    )
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (5, 1, 8)


def test_topic_wins_over_dynamic_over_properties_over_default() -> None:
    over = broker(message_max_bytes="1000")
    assert TopicConfig.resolve({}, over).max_message_bytes == 1000
    over = over.with_overrides({}, {"message.max.bytes": "2000"})
    assert TopicConfig.resolve({}, over).max_message_bytes == 2000
    over = over.with_overrides({"message.max.bytes": "3000"}, {"message.max.bytes": "2000"})
    assert TopicConfig.resolve({}, over).max_message_bytes == 3000
    assert TopicConfig.resolve({"max.message.bytes": "4000"}, over).max_message_bytes == 4000


@given(st.dictionaries(st.sampled_from(sorted(SYNONYMS)), st.integers(1_048_576, 2_000_000), max_size=8))
def test_every_override_is_seen_and_nothing_else_changes(numbers: dict[str, int]) -> None:
    overrides = {}
    for name, number in numbers.items():
        try:
            TOPIC_KEYS[name].parse(str(number))
        except ConfigError:
            continue
        overrides[name] = str(number)
    config, plain = TopicConfig.resolve(overrides, BrokerConfig()), TopicConfig()
    for name, declared in TOPIC_KEYS.items():
        expected = int(overrides[name]) if name in overrides else getattr(plain, declared.attribute)
        assert getattr(config, declared.attribute) == expected


@pytest.mark.parametrize(
    ("text", "compact", "delete"),
    [("delete", False, True), ("compact", True, False), ("compact, delete", True, True), ("", False, False)],
)
def test_cleanup_policies(text: str, compact: bool, delete: bool) -> None:
    config = TopicConfig.resolve({"cleanup.policy": text}, BrokerConfig())
    assert (config.compact, config.delete) == (compact, delete)


def test_small_segments_for_tests_have_a_key_of_their_own() -> None:
    assert "at least 1048576" in refusal({"segment.bytes": "1000"})
    validate_topic_overrides({"internal.segment.bytes": "1000"})
    assert TopicConfig.resolve({"internal.segment.bytes": "1000"}, BrokerConfig()).segment_bytes == 1000


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "soon", "Not a number of type LONG"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("compression.zstd.level", "23", "Value must be no more than 22"),
        ("leader.replication.throttled.replicas", "1", "partition:broker"),
    ],
)
def test_a_bad_override_is_refused_in_kafkas_words(name: str, text: str, problem: str) -> None:
    assert refusal({name: text}).startswith(f"Invalid value {text} for configuration {name}: ")
    assert problem in refusal({name: text})


@pytest.mark.parametrize("text", ["*", "0:1", "0:1,2:3", ""])
def test_throttled_replicas(text: str) -> None:
    validate_topic_overrides({"follower.replication.throttled.replicas": text})


def test_an_unknown_override_is_refused_with_the_nearest_key() -> None:
    assert refusal({"retention.msec": "1"}) == "Unknown topic config name: retention.msec (did you mean retention.ms?)"
    assert refusal({"nothing.alike": "1"}) == "Unknown topic config name: nothing.alike"


def test_an_override_without_a_value_is_refused() -> None:
    assert refusal({"retention.ms": None, "flush.ms": "1"}) == (
        "Null value not supported for topic configs: retention.ms"
    )


def test_compaction_lags_must_agree_with_the_brokers_too() -> None:
    validate_topic_overrides({"min.compaction.lag.ms": "10"})
    assert refusal({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}) == (
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)"
    )
    over = broker(log_cleaner_max_compaction_lag_ms="5")
    assert "conflict" in refusal({"min.compaction.lag.ms": "10"}, over)


def test_tiered_storage_is_refused() -> None:
    assert "Tiered Storage" in refusal({"remote.storage.enable": "true"})
    validate_topic_overrides({"remote.storage.enable": "false"})

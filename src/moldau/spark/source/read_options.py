"""The options of a source, with the names and defaults of Spark's Kafka source.

Moldau adds `commitGroupId`, `pushDownPredicate` (the name in Spark's JDBC source), and the options of typed topics
(`moldau.spark.formats`). Two defaults differ: `kafka.isolation.level` is read_committed, and
`kafka.max.partition.fetch.bytes` is the value that reads fastest. Options that only matter to a Java consumer are
accepted and have no effect, so that existing code need not change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from moldau.client.config import ClientConfig
from moldau.errors import ConfigError
from moldau.spark.options import FORMAT_OPTIONS, Options
from moldau.spark.source.offsets import Offsets, parse_offsets, parse_partitions, parse_ranges, parse_timestamps
from moldau.spark.source.read_plan import FETCH_BYTES_DEFAULT, OffsetRange
from moldau.wire.constants import EARLIEST, LATEST, IsolationLevel
from moldau.wire.topic_partition import TopicPartition

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")  # the first one given counts
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_NO_EFFECT = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms",
)
OPTION_NAMES = (
    *SUBSCRIPTIONS,
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    *_ENDS,
    "excludedOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitGroupId",
    "idleWaitMs",
    "idleWaitTopics",
    "pushDownPredicate",
    *_NO_EFFECT,
    *FORMAT_OPTIONS,
)

_START_INSTEAD = "Spark keeps the positions: use the option startingOffsets (earliest or latest) for where to start"
_FORMAT_INSTEAD = "columns are binary: use the option value.format or key.format, or functions of the DataFrame"
_REFUSED = {
    "auto.offset.reset": _START_INSTEAD,
    "enable.auto.commit": "Spark keeps the positions: use the option commitGroupId to show them in a consumer group",
    "key.deserializer": _FORMAT_INSTEAD,
    "value.deserializer": _FORMAT_INSTEAD,
    "interceptor.classes": "there is no Java consumer to intercept: use functions of the DataFrame",
}

# Two fetches are held in memory at a time.
FETCH_BYTES_MAX = 256 * 1024 * 1024

# A query that is stopped may have to wait for it.
IDLE_WAIT_MS_MAX = 10_000

_DELAY = re.compile(r"(\d{1,15})\s*(us|ms|s|m|min|h|d)?", re.ASCII)
_DELAY_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Subscription(NamedTuple):
    """Exactly one of three: topics by name, topics by a pattern found anywhere in their names, or partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


class Boundary(NamedTuple):
    """Where to start or to end, everywhere or in each partition. Times may be EARLIEST and LATEST, as in
    ListOffsets; offsets may be, too."""

    option: str
    time: int | None = None
    times: Offsets | None = None
    offsets: Offsets | None = None


class ReadOptions(NamedTuple):
    client: ClientConfig
    subscription: Subscription
    start: Boundary
    end: Boundary
    latest_without_match: bool  # where no record is as late as a starting time: start at the end, instead of an error
    isolation: IsolationLevel
    fail_on_data_loss: bool
    include_headers: bool
    fetch_bytes_max: int
    check_crcs: bool
    partitions_min: int | None
    partition_rows_max: int | None
    trigger_rows_max: int | None
    trigger_rows_min: int | None
    trigger_delay_max_ms: float
    commit_group: str | None
    idle_wait_ms: int  # 0: a stream with nothing to read does not wait
    idle_wait_topics: tuple[str, ...]  # of other sources of the query: new records there end the wait, too
    excluded: tuple[OffsetRange, ...]  # never read
    push_down_predicate: bool  # only when asked for: see `batch_reader.PruningTopicReader`

    @classmethod
    def for_batch(cls, options: Options) -> ReadOptions:
        """From the first record there is to the last one."""
        read = cls.for_either(options)
        _refuse_everywhere(read.start, LATEST, "a batch cannot start at the latest offset: use earliest, or readStream")
        _refuse_everywhere(read.end, EARLIEST, "a batch cannot end at the earliest offset: use latest")
        _check_order(read.start, read.end)
        return read

    @classmethod
    def for_stream(cls, options: Options) -> ReadOptions:
        """From now on."""
        for name in _ENDS:
            if options.get(name) is not None:
                raise ConfigError(f"option {name}: a stream has no end: drop the option, or use spark.read")
        return cls.for_either(options, LATEST)

    @classmethod
    def for_either(cls, options: Options, start: int = EARLIEST) -> ReadOptions:
        """Before it is known which of the two is wanted, as when Spark asks for the columns."""
        options.refuse_other_connector()
        options.refuse_misspelt(OPTION_NAMES)
        _refuse_properties(options)
        rows_max = options.number("maxOffsetsPerTrigger")
        rows_min = options.number("minOffsetsPerTrigger")
        if rows_max is not None and rows_min is not None and rows_min > rows_max:
            raise ConfigError(f"option minOffsetsPerTrigger={rows_min}: more than maxOffsetsPerTrigger={rows_max}")
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            client=options.client_config("moldau-spark"),
            subscription=_subscription(options),
            start=_boundary(options, _STARTS, start),
            end=_boundary(options, _ENDS, LATEST),
            latest_without_match=strategy == "latest",
            isolation=_isolation(options),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            include_headers=options.flag("includeHeaders", False),
            fetch_bytes_max=_fetch_bytes(options),
            check_crcs=options.flag("kafka.check.crcs", True),
            partitions_min=options.number("minPartitions"),
            partition_rows_max=options.number("maxRecordsPerPartition"),
            trigger_rows_max=rows_max,
            trigger_rows_min=rows_min,
            trigger_delay_max_ms=delay_ms("maxTriggerDelay", options.text("maxTriggerDelay", "15m")),
            commit_group=_group(options),
            idle_wait_ms=min(options.number("idleWaitMs", least=0) or 0, IDLE_WAIT_MS_MAX),
            idle_wait_topics=tuple(filter(None, options.text("idleWaitTopics", "").split(","))),
            excluded=parse_ranges("excludedOffsets", options.text("excludedOffsets", "{}")),
            push_down_predicate=options.flag("pushDownPredicate", False),
        )


def _subscription(options: Options) -> Subscription:
    given = {name: value for name in SUBSCRIPTIONS if (value := options.get(name)) is not None}
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "none is given"
        raise ConfigError(f"exactly one of the options {', '.join(SUBSCRIPTIONS)} says what to read: {found}")
    ((name, value),) = given.items()
    if name == "assign":
        return Subscription(partitions=parse_partitions(name, value))
    if name == "subscribePattern":
        return Subscription(pattern=_pattern(value.strip()))
    topics = tuple(sorted({topic.strip() for topic in value.split(",")} - {""}))
    if not topics:
        raise ConfigError(f"option subscribe={value}: name at least one topic, or several with commas between")
    return Subscription(topics=topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option subscribePattern={text}: not a regular expression: {error}") from error
    if not text:
        raise ConfigError("option subscribePattern is empty: use .* for all topics")
    return text


def _boundary(options: Options, names: tuple[str, str, str], default: int) -> Boundary:
    by_time, by_times, by_offsets = names
    if options.get(by_time) is not None:
        return Boundary(by_time, time=options.number(by_time, least=0))
    if (text := options.get(by_times)) is not None:
        return Boundary(by_times, times=parse_timestamps(by_times, text))
    text = options.text(by_offsets, "").strip()
    word = {"": default, "earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if word is not None:
        return Boundary(by_offsets, time=word)
    return Boundary(by_offsets, offsets=parse_offsets(by_offsets, text))


def _refuse_everywhere(boundary: Boundary, refused: int, reason: str) -> None:
    if boundary.time == refused or refused in (boundary.offsets or {}).values():
        raise ConfigError(f"option {boundary.option}: {reason}")


def _check_order(start: Boundary, end: Boundary) -> None:
    for first, last in ((start.offsets, end.offsets), (start.times, end.times)):
        if first is None or last is None:
            continue
        if first.keys() != last.keys():
            odd = ", ".join(map(str, sorted(first.keys() ^ last.keys())))
            raise ConfigError(f"options {start.option} and {end.option} name different partitions: {odd}")
        for (topic, index), position in first.items():
            if 0 <= last[TopicPartition(topic, index)] < position:
                raise ConfigError(f"option {start.option}: {topic}-{index} starts behind its {end.option}")


def _refuse_properties(options: Options) -> None:
    properties = options.kafka_properties()
    for name, instead in _REFUSED.items():
        if name in properties:
            raise ConfigError(f"option kafka.{name} is not supported: {instead}")


def _isolation(options: Options) -> IsolationLevel:
    levels: Mapping[str, IsolationLevel] = {level.name.lower(): level for level in IsolationLevel}
    return levels[options.choice("kafka.isolation.level", tuple(levels), "read_committed")]


def _fetch_bytes(options: Options) -> int:
    names = ("kafka.max.partition.fetch.bytes", "kafka.fetch.max.bytes")
    given = [size for name in names if (size := options.number(name)) is not None]
    return min(*given, FETCH_BYTES_MAX) if given else FETCH_BYTES_DEFAULT


def delay_ms(option: str, text: str) -> float:
    """Spark's times: `500ms`, `30s`, `15m`, `2h`; a number alone is milliseconds."""
    match = _DELAY.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"option {option}={text}: expected a time like 30s, 15m or 2h")
    return int(match[1]) * _DELAY_UNITS_MS[match[2] or "ms"]


def _group(options: Options) -> str | None:
    group = options.get("commitGroupId")
    if group is not None and not group.strip():
        raise ConfigError("option commitGroupId is empty: name a consumer group, or drop the option")
    return group

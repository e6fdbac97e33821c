"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources and DescribeLogDirs."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

from moldau.broker.cluster.standalone import METADATA_FILE
from moldau.config.entries import ConfigSource
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.stores.local_store import LocalStore
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema
from tests.unit.broker.offline import OfflineBroker, StartOffline

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


async def describe(
    broker: OfflineBroker,
    *resources: tuple[int, str],
    keys: tuple[str, ...] | None = None,
    synonyms: bool = False,
    doc: bool = False,
    version: int = 4,
) -> list[Any]:
    def build(schema: Schema) -> Any:
        return schema.DescribeConfigsRequest(
            resources=tuple(
                schema.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
                for kind, name in resources
            ),
            include_synonyms=synonyms,
            include_documentation=doc,
        )

    return list((await broker.ask(ApiKey.DESCRIBE_CONFIGS, version, build)).results)


Changes = list[tuple[str, int, str | None]]
"""Key, operation and value."""


async def alter(
    broker: OfflineBroker,
    *resources: tuple[int, str, Changes],
    validate_only: bool = False,
    version: int = 1,
) -> list[Any]:
    def build(schema: Schema) -> Any:
        return schema.IncrementalAlterConfigsRequest(
            resources=tuple(
                schema.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=tuple(
                        schema.AlterableConfig(name=key, config_operation=operation, value=value)
                        for key, operation, value in changes
                    ),
                )
                for kind, name, changes in resources
            ),
            validate_only=validate_only,
        )

    return list((await broker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, build)).responses)


async def replace(broker: OfflineBroker, kind: int, name: str, configs: dict[str, str | None], version: int = 2) -> Any:
    answer = await broker.ask(
        ApiKey.ALTER_CONFIGS,
        version,
        lambda schema: schema.AlterConfigsRequest(
            resources=(
                schema.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=tuple(schema.AlterableConfig(name=key, value=value) for key, value in configs.items()),
                ),
            ),
            validate_only=False,
        ),
    )
    return answer.responses[0]


def topic_log_config(broker: OfflineBroker, topic: str = "t") -> Any:
    return broker.node.find_partition(topic, None, 0).log.config


# -- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topic_tells_every_key_and_where_its_value_comes_from(
    start_offline: StartOffline, version: int
) -> None:
    broker = start_offline({"log.retention.ms": "5000"})
    await broker.create("t", segment_bytes="2000000")
    (result,) = await describe(broker, (TOPIC, "t"), version=version)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "t")
    told = {config.name: (config.value, config.config_source) for config in result.configs}
    assert told["segment.bytes"] == ("2000000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert told["retention.ms"] == ("5000", ConfigSource.STATIC_BROKER_CONFIG)
    assert told["cleanup.policy"] == ("delete", ConfigSource.DEFAULT_CONFIG)
    assert all(not config.synonyms for config in result.configs)


async def test_only_the_keys_asked_for_are_told(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    (result,) = await describe(offline_broker, (TOPIC, "t"), keys=("retention.ms", "no.such.key"))
    assert [config.name for config in result.configs] == ["retention.ms"]


async def test_synonyms_and_documentation_come_when_asked_for(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t", retention_bytes="77")
    (result,) = await describe(offline_broker, (TOPIC, "t"), keys=("retention.bytes",), synonyms=True, doc=True)
    (config,) = result.configs
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [
        ("retention.bytes", "77", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.bytes", "-1", ConfigSource.DEFAULT_CONFIG),
    ]
    assert config.documentation
    (result,) = await describe(offline_broker, (TOPIC, "t"), keys=("retention.bytes",))
    assert (result.configs[0].documentation, result.configs[0].synonyms) == (None, ())


async def test_a_broker_tells_of_itself_and_of_no_other(offline_broker: OfflineBroker) -> None:
    me = str(offline_broker.node.node_id)
    await alter(offline_broker, (BROKER, "", [("log.retention.ms", SET, "7000")]))
    mine, everyones, others, nonsense = await describe(
        offline_broker, (BROKER, me), (BROKER, ""), (BROKER, "4711"), (BROKER, "x")
    )
    told = {config.name: config for config in mine.configs}
    assert (told["node.id"].value, told["node.id"].read_only) == (me, True)
    assert told["log.retention.ms"].config_source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert [(config.name, config.value) for config in everyones.configs] == [("log.retention.ms", "7000")]
    assert (others.error_code, others.configs) == (ErrorCode.INVALID_REQUEST, ())
    assert nonsense.error_code == ErrorCode.INVALID_REQUEST


async def test_what_cannot_be_described_says_why_and_spares_the_rest(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    me = str(offline_broker.node.node_id)
    results = await describe(
        offline_broker, (TOPIC, "missing"), (TOPIC, "?"), (LOGGER, me), (METRICS, "m"), (99, "x"), (GROUP, ""),
        (TOPIC, "t"),
    )  # fmt: skip
    assert [ErrorCode(result.error_code) for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert "logger" in results[2].error_message


async def test_a_group_follows_the_broker(start_offline: StartOffline) -> None:
    broker = start_offline({"group.consumer.session.timeout.ms": "50000"})
    (result,) = await describe(broker, (GROUP, "g"))
    assert {config.name: config.value for config in result.configs}["consumer.session.timeout.ms"] == "50000"


async def test_a_group_has_a_configuration_before_it_has_members(start_offline: StartOffline) -> None:
    broker = start_offline({"group.share.record.lock.duration.ms": "20000"})
    results = await alter(
        broker,
        (
            GROUP,
            "g",
            [("share.auto.offset.reset", SET, "by_duration:PT2H"), ("share.delivery.count.limit", SET, "3")],
        ),
        (GROUP, "other", [("share.session.timeout.ms", SET, "1000")]),
        (GROUP, "unknown", [("share.colour", SET, "blue")]),
    )
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_CONFIG]
    (result,) = await describe(broker, (GROUP, "g"))
    told = {config.name: (config.value, config.config_source) for config in result.configs}
    assert told["share.auto.offset.reset"] == ("by_duration:PT2H", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert told["share.delivery.count.limit"] == ("3", ConfigSource.DYNAMIC_GROUP_CONFIG)
    assert told["share.record.lock.duration.ms"] == ("20000", ConfigSource.STATIC_BROKER_CONFIG)
    assert told["share.isolation.level"] == ("read_uncommitted", ConfigSource.DEFAULT_CONFIG)
    assert dict(broker.node.metadata.image.group_config("other")) == {}
    await alter(broker, (GROUP, "g", [("share.delivery.count.limit", DELETE, None)]))
    assert dict(broker.node.metadata.image.group_config("g")) == {"share.auto.offset.reset": "by_duration:PT2H"}


# -- IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(2))
async def test_a_change_reaches_the_log_at_once(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t")
    (result,) = await alter(offline_broker, (TOPIC, "t", [("retention.ms", SET, "1234")]), version=version)
    assert (result.error_code, result.error_message, result.resource_name) == (0, None, "t")
    assert topic_log_config(offline_broker).retention_ms == 1234
    await alter(offline_broker, (TOPIC, "t", [("retention.ms", DELETE, None)]), version=version)
    assert topic_log_config(offline_broker).retention_ms == 7 * 86_400_000


async def test_lists_are_appended_to_and_subtracted_from(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    await alter(offline_broker, (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]))
    assert topic_log_config(offline_broker).cleanup_policy == {"delete", "compact"}
    await alter(offline_broker, (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")]))
    assert topic_log_config(offline_broker).cleanup_policy == {"compact"}
    (result,) = await alter(offline_broker, (TOPIC, "t", [("retention.ms", APPEND, "1")]))
    assert result.error_code == ErrorCode.INVALID_CONFIG


async def test_a_refused_resource_stays_whole_and_spares_the_rest(offline_broker: OfflineBroker) -> None:
    for name in ("a", "b", "c"):
        await offline_broker.create(name)
    results = await alter(
        offline_broker,
        (TOPIC, "a", [("retention.ms", SET, "1000"), ("segment.bytes", SET, "much")]),
        (TOPIC, "b", [("retention.ms", SET, "2000")]),
        (TOPIC, "c", [("retention.ms", SET, "1")]),
        (TOPIC, "c", [("retention.ms", SET, "2")]),
        (TOPIC, "missing", [("retention.ms", SET, "1")]),
        (TOPIC, "b2", []),
        (BROKER, "4711", [("log.retention.ms", SET, "1")]),
        (LOGGER, "1", [("root", SET, "DEBUG")]),
        (METRICS, "m", [("interval.ms", SET, "50000")]),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]),
        (TOPIC, "", [("retention.ms", SET, "1")]),
    )
    assert [(result.resource_name, ErrorCode(result.error_code)) for result in results] == [
        ("a", ErrorCode.INVALID_CONFIG),
        ("b", ErrorCode.NONE),
        ("c", ErrorCode.INVALID_REQUEST),
        ("c", ErrorCode.INVALID_REQUEST),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b2", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("4711", ErrorCode.INVALID_REQUEST),
        ("1", ErrorCode.INVALID_REQUEST),
        ("m", ErrorCode.INVALID_REQUEST),
        ("", ErrorCode.INVALID_REQUEST),
        ("", ErrorCode.INVALID_REQUEST),
    ]
    image = offline_broker.node.metadata.image
    assert [dict(image.topic_config(name)) for name in ("a", "b", "c")] == [{}, {"retention.ms": "2000"}, {}]


async def test_a_change_that_makes_no_sense_is_refused(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    senseless: list[Changes] = [
        [("retention.ms", SET, None)],
        [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        [("retention.ms", 9, "1")],
    ]
    for changes in senseless:
        (result,) = await alter(offline_broker, (TOPIC, "t", changes))
        assert result.error_code == ErrorCode.INVALID_REQUEST, changes
    (result,) = await alter(offline_broker, (TOPIC, "t", [("no.such.key", SET, "1")]))
    assert result.error_code == ErrorCode.INVALID_CONFIG


async def test_validate_only_alters_nothing(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    before = offline_broker.node.metadata.image
    good: Changes = [("retention.ms", SET, "1")]
    (result,) = await alter(offline_broker, (TOPIC, "t", good), validate_only=True)
    assert result.error_code == 0
    assert offline_broker.node.metadata.image is before


async def test_a_dynamic_broker_key_reaches_topics_that_do_not_override_it(
    offline_broker: OfflineBroker,
) -> None:
    await offline_broker.create("t")
    await offline_broker.create("own", retention_ms="5")
    me = str(offline_broker.node.node_id)
    await alter(offline_broker, (BROKER, "", [("log.retention.ms", SET, "7000")]))
    assert topic_log_config(offline_broker).retention_ms == 7000
    await alter(offline_broker, (BROKER, me, [("log.retention.ms", SET, "8000")]))
    assert topic_log_config(offline_broker).retention_ms == 8000
    assert topic_log_config(offline_broker, "own").retention_ms == 5
    (result,) = await alter(offline_broker, (BROKER, me, [("log.dirs", SET, "/elsewhere")]))
    assert result.error_code == ErrorCode.INVALID_REQUEST


# -- AlterConfigs


@pytest.mark.parametrize("version", range(3))
async def test_the_older_request_replaces_everything(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t", retention_ms="1000", segment_bytes="2000000")
    result = await replace(offline_broker, TOPIC, "t", {"retention.bytes": "5000"}, version)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "t")
    assert dict(offline_broker.node.metadata.image.topic_config("t")) == {"retention.bytes": "5000"}
    result = await replace(offline_broker, TOPIC, "t", {"retention.ms": None}, version)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    result = await replace(offline_broker, LOGGER, "1", {"root": "INFO"}, version)
    assert result.error_code == ErrorCode.INVALID_REQUEST


async def test_resources_of_one_request_cannot_contradict_each_other(offline_broker: OfflineBroker) -> None:
    results = await alter(
        offline_broker,
        (BROKER, "1", [("log.cleaner.min.compaction.lag.ms", SET, "100")]),
        (BROKER, "", [("log.cleaner.max.compaction.lag.ms", SET, "50")]),
    )
    assert [ErrorCode(result.error_code) for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    await offline_broker.create("t")  # metadata can still change


async def test_altered_values_survive_a_restart(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    await alter(offline_broker, (TOPIC, "t", [("retention.ms", SET, "42")]))
    await alter(offline_broker, (BROKER, "", [("log.retention.bytes", SET, "43")]))
    controller = offline_broker.node.controller
    controller.close()
    image = controller.open_alone(LocalStore(offline_broker.node.logs.directories[0] / METADATA_FILE))
    assert dict(image.topic_config("t")) == {"retention.ms": "42"}
    assert dict(image.broker_config(None)) == {"log.retention.bytes": "43"}


# -- ListConfigResources


async def resources(broker: OfflineBroker, *types: int, version: int = 1) -> Any:
    return await broker.ask(
        ApiKey.LIST_CONFIG_RESOURCES,
        version,
        lambda schema: schema.ListConfigResourcesRequest(resource_types=types),
    )


async def test_resources_with_a_configuration_are_listed(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("a")
    await offline_broker.create("b")
    me = str(offline_broker.node.node_id)
    everything = await resources(offline_broker)
    assert {(each.resource_type, each.resource_name) for each in everything.config_resources} == {
        (BROKER, me),
        (TOPIC, "a"),
        (TOPIC, "b"),
    }
    only_brokers = await resources(offline_broker, BROKER)
    assert [each.resource_name for each in only_brokers.config_resources] == [me]
    assert (await resources(offline_broker, 99)).error_code == ErrorCode.UNSUPPORTED_VERSION
    metrics = await resources(offline_broker, version=0)
    assert (metrics.error_code, metrics.config_resources) == (0, ())


# -- DescribeLogDirs


async def log_dirs(broker: OfflineBroker, topics: dict[str, tuple[int, ...]] | None, version: int) -> Any:
    def build(schema: Schema) -> Any:
        return schema.DescribeLogDirsRequest(
            topics=None
            if topics is None
            else tuple(
                schema.DescribableLogDirTopic(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            )
        )

    return await broker.ask(ApiKey.DESCRIBE_LOG_DIRS, version, build)


@pytest.mark.parametrize("version", range(1, 5))
async def test_log_dirs_tell_sizes_and_room(offline_broker: OfflineBroker, version: int) -> None:
    await offline_broker.create("t", 2)
    await offline_broker.create("u")
    offline_broker.write("t", 3, partition=1)
    answer = await log_dirs(offline_broker, None, version)
    (directory,) = answer.results
    assert (directory.error_code, directory.log_dir) == (0, str(offline_broker.node.logs.directories[0]))
    sizes = {
        (topic.name, part.partition_index): part.partition_size
        for topic in directory.topics
        for part in topic.partitions
    }
    written = (offline_broker.node.logs.directories[0] / "t-1" / "00000000000000000000.log").stat().st_size
    assert sizes == {("t", 0): 0, ("t", 1): written, ("u", 0): 0}
    if version >= 3:
        assert answer.error_code == 0
    if version >= 4:
        assert directory.total_bytes >= directory.usable_bytes > 0


async def test_log_dirs_tell_only_what_was_asked_for(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t", 2)
    await offline_broker.create("u")
    answer = await log_dirs(offline_broker, {"t": (1, 5), "missing": (0,)}, 4)
    assert [
        (topic.name, [part.partition_index for part in topic.partitions]) for topic in answer.results[0].topics
    ] == [("t", [1])]
    assert (await log_dirs(offline_broker, {}, 4)).results[0].topics == ()


async def test_log_dirs_are_described_while_a_disk_hangs(
    offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(path: str) -> NoReturn:
        raise AssertionError(f"the loop asked for the space of {path}")

    monkeypatch.setattr(os, "statvfs", hang)
    (directory,) = (await log_dirs(offline_broker, None, 4)).results
    assert directory.total_bytes >= directory.usable_bytes > 0, "as last measured"


async def test_a_folder_that_failed_says_so(offline_broker: OfflineBroker) -> None:
    await offline_broker.create("t")
    log = offline_broker.node.find_partition("t", None, 0).log
    refusal: KafkaError = log.log_dir.storage_error("cannot write", OSError(5, "Input/output error"))
    assert refusal.code == ErrorCode.KAFKA_STORAGE_ERROR
    (directory,) = (await log_dirs(offline_broker, None, 4)).results
    assert (directory.error_code, directory.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, ())

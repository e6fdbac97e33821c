"""Planning of dynamic configuration: the records that an AlterConfigs request needs, or why it is refused.

Pure functions over an image. All changes of one resource are applied, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from moldau.config.broker import BROKER_KEYS, CLUSTER_WIDE, BrokerConfig
from moldau.config.group import GROUP_KEYS, validate_group_overrides
from moldau.config.keys import Key, Kind, format_value
from moldau.config.topic import TOPIC_KEYS, validate_topic_overrides
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.metadata.cluster_wide import elrs_with_min_isr
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord, Record
from moldau.metadata.topics import validate_topic_name

# As Kafka: a value is a string of the metadata log with a 16-bit length.
MAX_VALUE_LENGTH = 32_767


_KEYS: dict[str, dict[str, Key]] = {"topic": TOPIC_KEYS, "broker": BROKER_KEYS, "group": GROUP_KEYS}


class ConfigOp(IntEnum):
    """What IncrementalAlterConfigs does to a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    key: str
    op: ConfigOp | int
    value: str | None = None


def plan_incremental_alter_configs(
    image: MetadataImage,
    resource_type: str,
    resource_name: str,
    changes: Iterable[ConfigChange],
    broker_config: BrokerConfig,
) -> list[Record]:
    """Records of IncrementalAlterConfigs on a `topic`, a `group`, or a `broker` (the empty name: all brokers)."""
    changes = list(changes)
    _check_resource(image, resource_type, resource_name, broker_config)
    _check_names([change.key for change in changes])
    nulls = [change.key for change in changes if change.value is None and change.op != ConfigOp.DELETE]
    _check_nulls(nulls)
    current = dict(image.configs.get((resource_type, resource_name), {}))
    wanted = dict(current)
    for change in changes:
        value = _changed(resource_type, change, current.get(change.key))
        if value is None:
            wanted.pop(change.key, None)
        else:
            wanted[change.key] = value
    return _records(image, resource_type, resource_name, wanted, broker_config)


def plan_alter_configs(
    image: MetadataImage,
    resource_type: str,
    resource_name: str,
    configs: Iterable[tuple[str, str | None]] | Mapping[str, str],
    broker_config: BrokerConfig,
) -> list[Record]:
    """Records of the older AlterConfigs: `configs` take the place of everything set before."""
    pairs = list(configs.items() if isinstance(configs, Mapping) else configs)
    _check_resource(image, resource_type, resource_name, broker_config)
    _check_names([key for key, _ in pairs])
    _check_nulls([key for key, value in pairs if value is None])
    wanted = {key: value for key, value in pairs if value is not None}
    return _records(image, resource_type, resource_name, wanted, broker_config)


def _check_resource(image: MetadataImage, resource_type: str, resource_name: str, broker_config: BrokerConfig) -> None:
    if resource_type == "topic":
        if not resource_name:
            raise _invalid_request("Default topic resources are not allowed.")
        validate_topic_name(resource_name)
        if resource_name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource_name}' does not exist.")
    elif resource_type == "broker":
        if resource_name:
            _check_broker_name(image, resource_name, broker_config)
    elif resource_type == "group":
        # The group itself need not be there yet: its first member may have to find the configuration.
        if not resource_name:
            raise _invalid_request("Default group resources are not allowed.")
    else:
        raise _invalid_request(f"Unknown resource type {resource_type}")


def _check_broker_name(image: MetadataImage, name: str, broker_config: BrokerConfig) -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise _invalid_request(f"Node id must be an integer, but it is: {name}") from None
    if broker_id != broker_config.node_id and broker_id not in image.brokers:
        raise _invalid_request(f"Unexpected broker id, expected {broker_config.node_id}, but received {name}")


def _check_names(names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise _invalid_request("Error due to duplicate config keys")


def _check_nulls(names: list[str]) -> None:
    if names:
        raise _invalid_request(f"Null value not supported for : {', '.join(names)}")


def _changed(resource_type: str, change: ConfigChange, current: str | None) -> str | None:
    """The key's value after one change; None means unset."""
    if change.op not in list(ConfigOp):
        raise _invalid_request(f"Unknown operations type {change.op}")
    if change.op == ConfigOp.DELETE:
        return None
    assert change.value is not None, "checked before"
    if change.op == ConfigOp.SET:
        return change.value
    declared = _KEYS[resource_type].get(change.key)
    if declared is None or declared.kind is not Kind.LIST:
        op = ConfigOp(change.op).name
        raise _invalid_config(f"Can't {op} to key {change.key} because its type is not LIST.")
    text = current if current is not None else format_value(declared.default) or ""
    elements = [element for element in text.split(",") if element]
    for element in change.value.split(","):
        if change.op == ConfigOp.APPEND and element not in elements:
            elements.append(element)
        elif change.op == ConfigOp.SUBTRACT and element in elements:
            elements.remove(element)
    return ",".join(elements)


def _records(
    image: MetadataImage,
    resource_type: str,
    resource_name: str,
    wanted: Mapping[str, str],
    broker_config: BrokerConfig,
) -> list[Record]:
    current = image.configs.get((resource_type, resource_name), {})
    for value in wanted.values():
        if len(value) > MAX_VALUE_LENGTH:
            raise _invalid_config(
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_LENGTH} bytes."
            )
    if resource_type == "topic":
        validate_topic_overrides(wanted, broker_config)
    elif resource_type == "group":
        validate_group_overrides(wanted, broker_config)
    else:
        _check_broker_values(image, resource_name, wanted, broker_config)
    changed = [
        ConfigRecord(resource_type, resource_name, key, value)
        for key, value in wanted.items()
        if current.get(key) != value
    ]
    removed = [ConfigRecord(resource_type, resource_name, key, None) for key in current if key not in wanted]
    records: list[Record] = [*changed, *removed]
    if resource_type == "broker":
        for record in (*changed, *removed):
            if record.key in CLUSTER_WIDE:
                _check_cluster_wide(record)
    if any(record.key == "min.insync.replicas" for record in (*changed, *removed)):
        records += elrs_with_min_isr(image, image.apply(records), broker_config)
    return records


def _check_cluster_wide(record: ConfigRecord) -> None:
    """Kafka's words."""
    if record.resource_name:
        raise _invalid_config(f"Broker-level {record.key} cannot be altered while ELR is enabled.")
    if record.value is None:
        raise _invalid_config(f"Cluster-level {record.key} cannot be removed while ELR is enabled.")


def _check_broker_values(
    image: MetadataImage, resource_name: str, wanted: Mapping[str, str], broker_config: BrokerConfig
) -> None:
    """Own values and defaults have to fit each other as the image has them: `broker_config` is older than it."""
    try:
        if resource_name:
            broker_config.with_overrides(wanted, image.broker_config(None))
        else:
            broker_config.with_overrides(image.broker_config(broker_config.node_id), wanted)
    except ConfigError as error:
        # Kafka answers INVALID_REQUEST here, not INVALID_CONFIG, and says so of itself (KAFKA-13609).
        raise _invalid_request(str(error)) from None


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _invalid_config(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)

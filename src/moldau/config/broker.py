"""The broker's configuration: every key it honours, parsed from properties, with Kafka's rules between keys.

The keys themselves are in `network_keys`, `storage_keys`, `cluster_keys`, `coordinator_keys` and `share_keys`; keys
of Apache Kafka without a meaning here are named in `known_keys`. What DescribeConfigs answers is in `describe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

from moldau.config.cluster_keys import ClusterKeys
from moldau.config.coordinator_keys import CoordinatorKeys
from moldau.config.keys import (
    Value,
    attribute_of,
    configuration,
    format_value,
    key_table,
    nearest,
    parse_csv_map,
)
from moldau.config.known_keys import KNOWN_WITHOUT_EFFECT, UNSAFE_TO_IGNORE, has_no_effect
from moldau.config.listeners import SERVED_PROTOCOLS, Listener, parse_listeners, parse_protocol_map
from moldau.config.network_keys import NetworkKeys
from moldau.config.old_keys import OLD_LISTENER_KEYS, is_read, with_listeners
from moldau.config.share_keys import ShareKeys, share_key_problem
from moldau.config.storage_keys import StorageKeys
from moldau.errors import ConfigError

__all__ = ["BROKER_KEYS", "CLUSTER_WIDE", "BrokerConfig", "Listener", "value_text"]

CLUSTER_WIDE = ("min.insync.replicas",)
"""Keys of which a cluster has one value; `metadata.cluster_wide` has the reason."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


@configuration
class BrokerConfig(NetworkKeys, StorageKeys, ClusterKeys, CoordinatorKeys, ShareKeys):
    """Immutable. `originals` is what the properties said, the dynamic maps what IncrementalAlterConfigs said.

    An attribute is the value in force: dynamic of this broker, then dynamic default of the cluster, then
    properties, then the key's default; of a `CLUSTER_WIDE` key the cluster's comes first. `log_dirs` and
    `advertised_listeners` are always filled in.
    """

    originals: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    dynamic: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    dynamic_default: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        if not self.advertised_listeners:
            # Nobody can connect to "every interface": an empty host asks for the machine's own name.
            told = tuple(each._replace(host="") if each.host in ("0.0.0.0", "::") else each for each in self.listeners)
            object.__setattr__(self, "advertised_listeners", told)

    @classmethod
    def from_properties(cls, props: Mapping[str, str], *, strict: bool = False) -> tuple[BrokerConfig, list[str]]:
        """The configuration that `props` describe, and warnings for a person to read.

        `strict` refuses what should be warned about, but for keys that are right and merely have no effect here.
        """
        told = {name: warning for name in props if (warning := _warning_about(name)) is not None}
        if told and strict:
            raise ConfigError("; ".join(told.values()))
        warnings = list(told.values())
        idle = [name for name in props if name not in told and _is_idle(name) and not is_read(name, props)]
        if idle:
            warnings.append(f"configuration keys without effect: {', '.join(idle)}")
        props, old = with_listeners(props)
        warnings += old
        config = cls._build(props, _NOTHING, _NOTHING)
        unopened = set(config.controller_listener_names) & {
            entry.partition("://")[0].upper() for entry in props.get("listeners", "").split(",")
        }
        if unopened:
            warnings.append(
                f"listeners: {', '.join(sorted(unopened))} is for a KRaft controller and is not opened; "
                "this broker manages its metadata itself"
            )
        return config, warnings

    def with_overrides(self, dynamic: Mapping[str, str], dynamic_default: Mapping[str, str] = _NOTHING) -> BrokerConfig:
        """This configuration under dynamic values; ConfigError where one is not dynamic or not valid."""
        if dynamic == self.dynamic and dynamic_default == self.dynamic_default:
            return self
        fixed = [name for name in (*dynamic, *dynamic_default) if not _is_dynamic(name)]
        if fixed:
            raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
        return self._build(self.originals, dynamic, dynamic_default)

    def get(self, name: str) -> Any:
        """The value in force under a Kafka key name; KeyError for a key the broker does not have."""
        if name not in BROKER_KEYS:
            raise KeyError(name)
        return getattr(self, attribute_of(name))

    @property
    def is_clustered(self) -> bool:
        """Whether the metadata is shared with other brokers; otherwise this broker has no cluster."""
        return bool(self.zookeeper_connect or self.moldau_metadata_dir)

    @property
    def connection_limits_by_ip(self) -> dict[str, int]:
        """`max.connections.per.ip.overrides` as numbers."""
        return _connection_limits(self.max_connections_per_ip_overrides)

    @classmethod
    def _build(
        cls, originals: Mapping[str, str], dynamic: Mapping[str, str], dynamic_default: Mapping[str, str]
    ) -> BrokerConfig:
        texts = {**originals, **dynamic_default, **dynamic}
        texts |= {name: dynamic_default[name] for name in CLUSTER_WIDE if name in dynamic_default}
        values: dict[str, Any] = {
            declared.attribute: declared.parse(texts[name]) for name, declared in BROKER_KEYS.items() if name in texts
        }
        _settle_node_id(values)
        if "log_dirs" not in values and "log_dir" in values:
            values["log_dirs"] = values["log_dir"]
        values.update(_settle_listeners(values))
        config = cls(
            **values,
            originals=MappingProxyType(_with_both_ids(originals)),
            dynamic=MappingProxyType(dict(dynamic)),
            dynamic_default=MappingProxyType(dict(dynamic_default)),
        )
        _check(config)
        return config


BROKER_KEYS = key_table(BrokerConfig)


def value_text(value: Any) -> str | None:
    """A typed value of a broker attribute as text; listeners are richer than the plain kinds."""
    if isinstance(value, tuple) and value and isinstance(value[0], Listener):
        return ",".join(map(str, value))
    plain: Value = value
    return format_value(plain)


def _is_dynamic(name: str) -> bool:
    """Unknown keys are accepted too, as by Kafka: plug-ins may read them."""
    declared = BROKER_KEYS.get(name)
    return not has_no_effect(name) if declared is None else declared.dynamic


def _is_idle(name: str) -> bool:
    """A stock file has a dozen of these: they share one line."""
    declared = BROKER_KEYS.get(name)
    return declared.later if declared is not None else has_no_effect(name) or name in OLD_LISTENER_KEYS


def _warning_about(name: str) -> str | None:
    if name in UNSAFE_TO_IGNORE:
        return f"{name} has no effect: {UNSAFE_TO_IGNORE[name]}"
    if name in BROKER_KEYS or has_no_effect(name) or name in OLD_LISTENER_KEYS:
        return None
    meant = nearest(name, [*BROKER_KEYS, *KNOWN_WITHOUT_EFFECT])
    hint = f"; did you mean {meant}?" if meant else ""
    return f"unknown configuration key {name}{hint}"


def _settle_node_id(values: dict[str, Any]) -> None:
    """`node.id` and `broker.id` are one number under two names."""
    node_id, broker_id = values.get("node_id"), values.get("broker_id")
    if broker_id == -1:
        broker_id = None  # Kafka's old "choose one for me"
    if node_id is not None and broker_id is not None and node_id != broker_id:
        raise ConfigError(f"You must set node.id ({node_id}) to the same value as broker.id ({broker_id}).")
    settled = node_id if node_id is not None else broker_id
    if settled is None:
        values.pop("broker_id", None)
    else:
        values["node_id"] = values["broker_id"] = settled


def _with_both_ids(originals: Mapping[str, str]) -> dict[str, str]:
    """Kafka describes either name of the node's id as set when one of them is."""
    given = originals.get("node.id", originals.get("broker.id"))
    return dict(originals) if given is None else {**originals, "node.id": given, "broker.id": given}


def _settle_listeners(values: dict[str, Any]) -> dict[str, tuple[Listener, ...]]:
    """The listener keys that were given, as Listener tuples, without those of a KRaft controller."""
    controller_names = tuple(name.upper() for name in values.get("controller_listener_names", ()))
    values["controller_listener_names"] = controller_names
    map_name = "listener.security.protocol.map"
    mapped = values.get("listener_security_protocol_map", BROKER_KEYS[map_name].default)
    protocols = parse_protocol_map(map_name, str(mapped))
    if "listener_security_protocol_map" not in values:
        protocols.update((name, "PLAINTEXT") for name in controller_names if name not in protocols)
    settled = {}
    for name, distinct_ports in (("listeners", True), ("advertised.listeners", False)):
        attribute = attribute_of(name)
        if attribute in values:
            parsed = parse_listeners(name, values[attribute], protocols, distinct_ports=distinct_ports)
            settled[attribute] = tuple(each for each in parsed if each.name not in controller_names)
    return settled


def _check(config: BrokerConfig) -> None:
    """Kafka's rules between keys."""
    _check_listeners(config)
    _check_log_times(config)
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise ConfigError(
            f"queued.max.request.bytes ({config.queued_max_request_bytes}) must be greater than or equal to "
            f"socket.request.max.bytes ({config.socket_request_max_bytes})"
        )
    limits_by_ip = config.connection_limits_by_ip  # read in any case: here a malformed one is refused
    if config.max_connections_per_ip == 0 and not limits_by_ip:
        raise ConfigError("max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides is set")
    longest_wait_ms = min(config.replica_socket_timeout_ms, config.replica_lag_time_max_ms)
    if config.replica_fetch_wait_max_ms > longest_wait_ms:
        raise ConfigError(
            f"replica.fetch.wait.max.ms ({config.replica_fetch_wait_max_ms}) must not be greater than "
            "replica.socket.timeout.ms or replica.lag.time.max.ms"
        )
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError("group.min.session.timeout.ms must not be more than group.max.session.timeout.ms")
    if "classic" not in config.group_coordinator_rebalance_protocols:
        raise ConfigError("group.coordinator.rebalance.protocols: the classic protocol cannot be turned off")
    problem = share_key_problem(config)
    if problem is not None:
        raise ConfigError(problem)


def _check_listeners(config: BrokerConfig) -> None:
    if not config.listeners:
        raise ConfigError("listeners: no listener for clients is left; all are in controller.listener.names")
    known = ", ".join(listener.name for listener in config.listeners)
    for listener in config.listeners:
        if listener.protocol not in SERVED_PROTOCOLS:
            raise ConfigError(
                f"listeners: {listener} requires {listener.protocol}, which is not supported; use "
                f"{' or '.join(sorted(SERVED_PROTOCOLS))}"
            )
    for advertised in config.advertised_listeners:
        if all(advertised.name != listener.name for listener in config.listeners):
            raise ConfigError(f"advertised.listeners: {advertised.name} is not one of the listeners ({known})")
        if advertised.host == "0.0.0.0":
            raise ConfigError("advertised.listeners cannot use 0.0.0.0; use an address that clients can reach")
    inter_broker = config.inter_broker_listener_name
    if inter_broker is not None and all(
        inter_broker.upper() != advertised.name for advertised in config.advertised_listeners
    ):
        raise ConfigError(f"inter.broker.listener.name: {inter_broker} is not one of the listeners ({known})")


def _check_log_times(config: BrokerConfig) -> None:
    if config.log_roll_ms is not None and config.log_roll_ms < 1:
        raise ConfigError(f"log.roll.ms ({config.log_roll_ms}) must be at least 1")
    if config.log_roll_jitter_ms is not None and config.log_roll_jitter_ms < 0:
        raise ConfigError(f"log.roll.jitter.ms ({config.log_roll_jitter_ms}) must be at least 0")
    names = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    in_force = next(name for name in names if config.get(name) is not None)
    if config.get(in_force) == 0:
        raise ConfigError(f"{in_force} (0) must be -1 for no limit, or at least 1")
    if config.log_cleaner_min_compaction_lag_ms > config.log_cleaner_max_compaction_lag_ms:
        raise ConfigError(
            "log.cleaner.min.compaction.lag.ms must not be greater than log.cleaner.max.compaction.lag.ms"
        )


def _connection_limits(text: str) -> dict[str, int]:
    name = "max.connections.per.ip.overrides"
    limits = {}
    for address, count in parse_csv_map(name, text).items():
        if not count.isdigit():
            raise ConfigError(f"Invalid value {text} for configuration {name}: {count!r} is not a number")
        limits[address] = int(count)
    return limits

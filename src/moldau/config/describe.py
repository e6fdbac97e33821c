"""What DescribeConfigs answers: every key with its value, where the value comes from, and its synonyms.

The numbers and the order of synonyms are Kafka's, and so is one habit: synonyms before the described name
itself are dropped, so a topic's `retention.ms` that comes from `log.retention.hours` shows none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moldau.config.broker import BROKER_KEYS, BrokerConfig, value_text
from moldau.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from moldau.config.group import GROUP_KEYS
from moldau.config.group import SYNONYMS as GROUP_SYNONYMS
from moldau.config.group import broker_value as group_value
from moldau.config.keys import Key, Kind, format_value
from moldau.config.topic import SYNONYMS, TOPIC_KEYS, broker_value

# Broker keys that say the same thing in other units, in order of precedence.
_FAMILIES = tuple(tuple(each.name for each in family) for family in SYNONYMS.values() if len(family) > 1)
# Filled in by the broker where they are not set; Kafka describes them as they were set.
_SHOWN_AS_SET = frozenset({"log.dirs", "advertised.listeners"})


def describe_topic(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every key of a topic with these overrides, by name."""
    return [
        _topic_entry(TOPIC_KEYS[name], overrides, broker)
        for name in sorted(TOPIC_KEYS)
        if not TOPIC_KEYS[name].internal
    ]


def describe_broker(broker: BrokerConfig) -> list[ConfigEntry]:
    """Every key of the broker, and what else its properties and dynamic configuration hold, by name."""
    names = {name for name, declared in BROKER_KEYS.items() if not declared.internal}
    names.update(broker.originals, broker.dynamic, broker.dynamic_default)
    return [_broker_entry(name, broker) for name in sorted(names)]


def describe_broker_defaults(broker: BrokerConfig) -> list[ConfigEntry]:
    """The dynamic defaults of all brokers: what DescribeConfigs answers for a broker without a name."""
    entries = []
    for name in sorted(broker.dynamic_default):
        entry = _broker_entry(name, broker)
        synonyms = tuple(each for each in entry.synonyms if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        value = None if entry.is_sensitive else broker.dynamic_default[name]
        entries.append(entry._replace(value=value, synonyms=synonyms, source=synonyms[0].source))
    return entries


def describe_group(overrides: Mapping[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    """Every key of a group with these overrides, by name."""
    return [_group_entry(GROUP_KEYS[name], overrides, broker) for name in sorted(GROUP_KEYS)]


def _group_entry(declared: Key, overrides: Mapping[str, str], broker: BrokerConfig) -> ConfigEntry:
    name = declared.name
    synonyms: list[ConfigSynonym] = []
    if name in overrides:
        synonyms.append(ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_GROUP_CONFIG))
    if name in GROUP_SYNONYMS:
        synonyms += _broker_synonyms(GROUP_SYNONYMS[name], broker, sensitive=False)
    else:
        synonyms.append(ConfigSynonym(name, format_value(declared.default), ConfigSource.DEFAULT_CONFIG))
    value = overrides.get(name, format_value(group_value(name, broker)))
    return ConfigEntry(name, value, _first(synonyms), False, False, tuple(synonyms), declared.kind, declared.doc)


def _topic_entry(declared: Key, overrides: Mapping[str, str], broker: BrokerConfig) -> ConfigEntry:
    name = declared.name
    synonyms: list[ConfigSynonym] = []
    if name in overrides:
        value = format_value(declared.parse(overrides[name]))
        synonyms.append(ConfigSynonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    else:
        value = format_value(broker_value(name, broker))
    if name in SYNONYMS:
        synonyms += _broker_synonyms(SYNONYMS[name][0].name, broker, sensitive=False)
    source = _first(synonyms)
    return ConfigEntry(name, value, source, False, False, tuple(synonyms), declared.kind, declared.doc)


def _broker_entry(name: str, broker: BrokerConfig) -> ConfigEntry:
    declared = BROKER_KEYS.get(name)
    if declared is None:
        # Nobody knows what a foreign key holds, so it is treated like a password.
        synonyms = _broker_synonyms(name, broker, sensitive=True)
        return ConfigEntry(name, None, _first(synonyms), True, True, synonyms, Kind.UNKNOWN, None)
    synonyms = _broker_synonyms(name, broker, sensitive=declared.sensitive)
    hidden = declared.sensitive or (name in _SHOWN_AS_SET and not synonyms)
    value = None if hidden else value_text(broker.get(name))
    source, read_only = _first(synonyms), not declared.dynamic
    return ConfigEntry(name, value, source, declared.sensitive, read_only, synonyms, declared.kind, declared.doc)


def _first(synonyms: Sequence[ConfigSynonym]) -> ConfigSource:
    return synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG


def _broker_synonyms(name: str, broker: BrokerConfig, *, sensitive: bool) -> tuple[ConfigSynonym, ...]:
    family = next((family for family in _FAMILIES if name in family), (name,))
    defaults = {each: format_value(BROKER_KEYS[each].default) for each in family if each in BROKER_KEYS}
    found = [
        ConfigSynonym(each, None if sensitive else values[each], source)
        for values, source in (
            (broker.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (broker.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (broker.originals, ConfigSource.STATIC_BROKER_CONFIG),
            (defaults, ConfigSource.DEFAULT_CONFIG),
        )
        for each in family
        if values.get(each) is not None
    ]
    while found and found[0].name != name:
        del found[0]
    return tuple(found)

"""A key is marked `later` exactly where nothing in the broker reads it: the reference page must not promise it."""

from __future__ import annotations

import re
from pathlib import Path

import moldau
from moldau.config.broker import BROKER_KEYS
from moldau.config.group import GROUP_KEYS, bounds_of
from moldau.config.group import SYNONYMS as GROUP_SYNONYMS
from moldau.config.keys import Key
from moldau.config.topic import SYNONYMS, TOPIC_KEYS

SOURCE = "".join(
    path.read_text()
    for room in ("broker", "cluster", "coordinators", "log", "metadata")
    for path in (Path(moldau.__file__).parent / room).rglob("*.py")
)
# Read by commands, through DescribeConfigs.
FOR_COMMANDS = {"moldau.cluster.brokers"}
# Read inside the configuration itself, which hands out what they lead to.
SETTLED = {
    "broker.id": "node_id",
    "cleanup.policy": "compact",
    "controller.listener.names": "listeners",
    "internal.segment.bytes": "segment_bytes",
    "listener.security.protocol.map": "listeners",
    "log.dir": "log_dirs",
    "max.connections.per.ip.overrides": "connection_limits_by_ip",
    "share.isolation.level": "reads_committed",
    "max.compaction.lag.ms": "max_segment_ms",
    "segment.ms": "max_segment_ms",
}


def is_read(declared: Key) -> bool:
    attribute = SETTLED.get(declared.name, declared.attribute)
    return re.search(rf"\.{attribute}\b", SOURCE) is not None


def test_a_topic_key_has_an_effect_or_says_that_it_has_none() -> None:
    assert {name for name, declared in TOPIC_KEYS.items() if declared.later} == {
        name for name, declared in TOPIC_KEYS.items() if not is_read(declared)
    }


def test_every_group_key_has_an_effect() -> None:
    assert {name for name, declared in GROUP_KEYS.items() if not is_read(declared)} == set()


def test_a_broker_key_has_an_effect_or_says_that_it_has_none() -> None:
    defaults = {
        synonym.name for topic_key, family in SYNONYMS.items() if is_read(TOPIC_KEYS[topic_key]) for synonym in family
    }
    defaults |= {bound for name in GROUP_KEYS for bound in (*bounds_of(name), GROUP_SYNONYMS.get(name, ""))}
    assert {name for name, declared in BROKER_KEYS.items() if declared.later} == {
        name for name, declared in BROKER_KEYS.items() if name not in defaults | FOR_COMMANDS and not is_read(declared)
    }

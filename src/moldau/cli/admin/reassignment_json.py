"""The JSON files of `kafka-reassign-partitions`, and what follows from them: which replicas move, and their throttles.

Nothing here talks to a broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moldau.errors import ConfigError
from moldau.wire.topic_partition import TopicPartition

Replica = tuple[str, int, int]  # topic, partition, broker

ANY_LOG_DIR = "any"


class Plan(NamedTuple):
    replicas: dict[TopicPartition, list[int]]
    log_dirs: dict[Replica, str]  # only where the file names one


class Move(NamedTuple):
    sources: frozenset[int]
    destinations: frozenset[int]


def parse_plan(text: str) -> Plan:
    """`{"version": 1, "partitions": [{"topic": …, "partition": …, "replicas": […], "log_dirs": […]}]}`"""
    replicas: dict[TopicPartition, list[int]] = {}
    log_dirs: dict[Replica, str] = {}
    twice: list[TopicPartition] = []
    for entry in _entries(text, "partitions"):
        topic, index, ids = _field(entry, "topic", str), _field(entry, "partition", int), _ids(entry)
        dirs = entry.get("log_dirs", [ANY_LOG_DIR] * len(ids))
        if not isinstance(dirs, list) or len(dirs) != len(ids):
            raise ConfigError(
                f"Size of replicas list {ids} is different from size of log dirs list {dirs} "
                f"for partition {topic}-{index}"
            )
        if (topic, index) in replicas:
            twice.append(TopicPartition(topic, index))
        replicas[TopicPartition(topic, index)] = ids
        named = zip(ids, dirs, strict=True)
        log_dirs.update({(topic, index, broker): path for broker, path in named if path != ANY_LOG_DIR})
    if twice:
        raise ConfigError(f"Partition reassignment contains duplicate topic partitions: {names(twice)}")
    return Plan(replicas, log_dirs)


def check_executable(plan: Plan) -> None:
    if not plan.replicas:
        raise ConfigError("Partition reassignment list cannot be empty")
    if not all(plan.replicas.values()):
        raise ConfigError("Partition replica list cannot be empty")
    twice = [
        f"{topic}-{index} contains multiple entries for {','.join(map(str, _duplicates(ids)))}"
        for (topic, index), ids in plan.replicas.items()
        if _duplicates(ids)
    ]
    if twice:
        raise ConfigError(f"Partition replica lists may not contain duplicate entries: {'. '.join(twice)}")


def parse_topics(text: str) -> list[str]:
    """`{"version": 1, "topics": [{"topic": …}]}`"""
    topics = [_field(entry, "topic", str) for entry in _entries(text, "topics")]
    if _duplicates(topics):
        raise ConfigError(f"List of topics to reassign contains duplicate entries: {_duplicates(topics)}")
    return topics


def parse_partitions(text: str) -> list[TopicPartition]:
    """`{"partitions": [{"topic": …, "partition": …}]}`, the file of `kafka-leader-election`"""
    if "partitions" not in _document(text):
        raise ConfigError('Replica election data is missing "partitions" field')
    found = [
        TopicPartition(_field(each, "topic", str), _field(each, "partition", int))
        for each in _entries(text, "partitions")
    ]
    if _duplicates(found):
        raise ConfigError(f"Replica election data contains duplicate partitions: {names(_duplicates(found))}")
    return found


def parse_broker_list(text: str) -> list[int]:
    try:
        brokers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--broker-list {text}: expected broker ids, for example 0,1,2") from None
    if _duplicates(brokers):
        raise ConfigError(f"Broker list contains duplicate entries: {_duplicates(brokers)}")
    return brokers


def format_plan(replicas: Mapping[TopicPartition, Sequence[int]], log_dirs: Mapping[Replica, str]) -> str:
    partitions = [
        {
            "topic": topic,
            "partition": index,
            "replicas": list(ids),
            "log_dirs": [log_dirs.get((topic, index, broker), ANY_LOG_DIR) for broker in ids],
        }
        for (topic, index), ids in sorted(replicas.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"), ensure_ascii=False)


def throttled_replicas(moves: Mapping[TopicPartition, Move]) -> dict[str, tuple[str, str]]:
    """By topic the values of `leader.` and `follower.replication.throttled.replicas`: from where, and to where."""
    topics: dict[str, tuple[set[str], set[str]]] = {}
    for (topic, index), move in moves.items():
        leaders, followers = topics.setdefault(topic, (set(), set()))
        leaders.update(f"{index}:{broker}" for broker in move.sources)
        followers.update(f"{index}:{broker}" for broker in move.destinations - move.sources)
    return {topic: (",".join(sorted(leaders)), ",".join(sorted(f))) for topic, (leaders, f) in topics.items()}


def names(partitions: Iterable[TopicPartition], separator: str = ",") -> str:
    return separator.join(map(str, sorted(set(partitions))))


def _entries(text: str, name: str) -> list[dict[str, Any]]:
    document = _document(text)
    version = document.get("version", 1)
    if version != 1:
        raise ConfigError(f"Not supported version field value {version}")
    entries = document.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f'"{name}": expected a list of objects')
    return entries


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The input string is not a valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError("The input is not a JSON object")
    return document


def _field(entry: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f'"{name}": expected {"a number" if kind is int else "a string"} in {json.dumps(entry)}')
    return value


def _ids(entry: Mapping[str, Any]) -> list[int]:
    ids = entry.get("replicas")
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ConfigError(f'"replicas": expected a list of broker ids in {json.dumps(entry)}')
    return ids


def _duplicates(values: Sequence[Any]) -> list[Any]:
    return sorted({value for value in values if values.count(value) > 1})

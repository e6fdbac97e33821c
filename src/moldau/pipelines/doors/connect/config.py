"""The keys that every connector has, whatever its class: names, defaults and what `validate` tells about them.

Keys that nobody knows are no errors, as in Connect, where converters, transforms and clients take what they know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.config.keys import nearest
from moldau.pipelines.doors.connect.plugins import Plugin, PluginKind
from moldau.pipelines.model.kinds import BOOLEAN, NAMES, TEXT, Kind, choice, whole
from moldau.pipelines.model.options import Option, OptionTable

NAME = "name"
CONNECTOR_CLASS = "connector.class"
TASKS_MAX = "tasks.max"
TOPICS = "topics"
TOPICS_REGEX = "topics.regex"
TRANSFORMS = "transforms"
PREDICATES = "predicates"
TOLERANCE = "errors.tolerance"
LOG_ERRORS = "errors.log.enable"
RETRY_DELAY = "errors.retry.delay.max.ms"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
CONVERTERS = ("key.converter", "value.converter", "header.converter")
SIMPLE_HEADERS = "org.apache.kafka.connect.storage.SimpleHeaderConverter"


def _class_name(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected the name of a class")
    return value.strip()


def _aliases(value: object) -> tuple[str, ...]:
    if isinstance(value, str) and not value.strip():
        return ()
    names: tuple[str, ...] = NAMES.convert(value)
    if len(set(names)) < len(names):
        raise ValueError("Duplicate alias provided.")
    return names


def _any_case(*allowed: str) -> Kind:
    exact = choice(*allowed)
    return Kind(exact.name, lambda value: exact.convert(str(value).lower()), exact.schema)


def _pattern(value: object) -> str:
    try:
        re.compile(str(value))
    except re.error as error:
        raise ValueError(f"expected a regular expression: {error}") from error
    return str(value)


def _at_least_minus_one(value: object) -> int:
    return -1 if str(value).strip() == "-1" else int(whole(0).convert(value))


CLASS = Kind("class", _class_name)
LONG = Kind("long", _at_least_minus_one)
SHORT = Kind("short", _at_least_minus_one)
ALIASES = Kind("aliases", _aliases)
REGEX = Kind("regular expression", _pattern)

_TYPES = {
    "whole number": "INT",
    "number": "DOUBLE",
    "true or false": "BOOLEAN",
    "names": "LIST",
    "class": "CLASS",
    "long": "LONG",
    "short": "SHORT",
    "aliases": "LIST",
}


def type_name(option: Option) -> str:
    """Connect's word for the type of an option."""
    return "PASSWORD" if option.secret else _TYPES.get(option.kind.name, "STRING")


class Shown(NamedTuple):
    """How user interfaces show a key."""

    importance: str = "MEDIUM"
    group: str | None = None
    order: int = -1
    width: str = "NONE"
    display_name: str = ""


@dataclass(frozen=True)
class Key:
    option: Option
    shown: Shown


def _key(
    name: str, doc: str, shown: Shown, kind: Kind = TEXT, default: object = None, *, required: bool = False
) -> Key:
    return Key(Option(name, doc, kind, default=default, required=required), shown)


_COMMON = "Common"
_ERRORS = "Error Handling"
_ONCE = "Exactly Once Support"


def _converter(which: str, order: int) -> tuple[Key, Key]:
    name = f"{which}.converter"
    title = which.capitalize()
    return (
        _key(
            name,
            f"How the {which} of a record becomes bytes, and bytes the {which}. By default that of the worker.",
            Shown("LOW", _COMMON, order, "SHORT", f"{title} converter class"),
            CLASS,
        ),
        _key(
            f"{name}.plugin.version",
            f"Version of the {which} converter.",
            Shown("LOW", _COMMON, order + 1, "SHORT", f"{title} converter version"),
        ),
    )


COMMON_KEYS = (
    _key(
        NAME,
        "Name of the connector, unique on its worker.",
        Shown("HIGH", _COMMON, 1, "MEDIUM", "Connector name"),
        required=True,
    ),
    _key(
        CONNECTOR_CLASS,
        "Class of the connector, or the last part of its name, with or without `Connector`.",
        Shown("HIGH", _COMMON, 2, "LONG", "Connector class"),
        required=True,
    ),
    _key(
        "connector.plugin.version",
        "Version of the connector.",
        Shown("MEDIUM", _COMMON, 3, "MEDIUM", "Connector version"),
    ),
    _key(TASKS_MAX, "Most tasks of this connector.", Shown("HIGH", _COMMON, 4, "SHORT", "Tasks max"), whole(1), 1),
    _key(
        "tasks.max.enforce",
        "Whether more tasks than tasks.max are an error.",
        Shown("LOW", _COMMON, 5, "SHORT", "Enforce tasks max"),
        BOOLEAN,
        True,
    ),
    *_converter("key", 6),
    *_converter("value", 8),
    *_converter("header", 10),
    _key(
        TRANSFORMS,
        "Aliases of the transformations, in the order in which they are applied.",
        Shown("LOW", "Transforms", 12, "LONG", "Transforms"),
        ALIASES,
        (),
    ),
    _key(
        PREDICATES,
        "Aliases of the predicates that transformations use.",
        Shown("LOW", "Predicates", 13, "LONG", "Predicates"),
        ALIASES,
        (),
    ),
    _key(
        "config.action.reload",
        "What to do when a value from a configuration provider changes.",
        Shown("LOW", _COMMON, 14, "MEDIUM", "Reload Action"),
        choice("none", "restart"),
        "restart",
    ),
    _key(
        "errors.retry.timeout",
        "How long a failed operation is retried, in milliseconds; -1: without end.",
        Shown("MEDIUM", _ERRORS, 1, "MEDIUM", "Retry Timeout for Errors"),
        LONG,
        0,
    ),
    _key(
        RETRY_DELAY,
        "Longest pause between two attempts, in milliseconds.",
        Shown("MEDIUM", _ERRORS, 2, "MEDIUM", "Maximum Delay Between Retries for Errors"),
        LONG,
        60_000,
    ),
    _key(
        TOLERANCE,
        "none: a record that cannot be processed fails the task; all: it is skipped.",
        Shown("MEDIUM", _ERRORS, 3, "SHORT", "Error Tolerance"),
        choice("none", "all"),
        "none",
    ),
    _key(
        LOG_ERRORS,
        "Log errors that are tolerated.",
        Shown("MEDIUM", _ERRORS, 4, "SHORT", "Log Errors"),
        BOOLEAN,
        False,
    ),
    _key(
        "errors.log.include.messages",
        "Log where a record is that failed.",
        Shown("MEDIUM", _ERRORS, 5, "SHORT", "Log Error Details"),
        BOOLEAN,
        False,
    ),
)
SINK_KEYS = (
    _key(TOPICS, "Topics to read, with commas between.", Shown("HIGH", _COMMON, 4, "LONG", "Topics"), ALIASES, ()),
    _key(
        TOPICS_REGEX,
        "Topics to read, as a regular expression; instead of topics.",
        Shown("HIGH", _COMMON, 4, "LONG", "Topics regex"),
        REGEX,
        "",
    ),
    _key(
        DEAD_LETTER_TOPIC,
        "Topic for records that cannot be processed. Needs errors.tolerance=all.",
        Shown("MEDIUM", _ERRORS, 6, "MEDIUM", "Dead Letter Queue Topic Name"),
        TEXT,
        "",
    ),
    _key(
        "errors.deadletterqueue.topic.replication.factor",
        "Replicas of the topic for dead letters, if it does not exist.",
        Shown("MEDIUM", _ERRORS, 7, "MEDIUM", "Dead Letter Queue Topic Replication Factor"),
        SHORT,
        3,
    ),
    _key(
        "errors.deadletterqueue.context.headers.enable",
        "Headers that say why a record is a dead letter. They are always written.",
        Shown("MEDIUM", _ERRORS, 8, "MEDIUM", "Enable Error Context Headers"),
        BOOLEAN,
        False,
    ),
)
SOURCE_KEYS = (
    _key(
        "topic.creation.groups",
        "Groups of settings for topics that the connector creates.",
        Shown("LOW", "Topic Creation", 1, "LONG", "Topic Creation Groups"),
        ALIASES,
        (),
    ),
    _key(
        "exactly.once.support",
        "required: refuse a connector that cannot write exactly once.",
        Shown("MEDIUM", _ONCE, 2, "SHORT", "Exactly once support"),
        _any_case("requested", "required"),
        "requested",
    ),
    _key(
        "transaction.boundary",
        "When transactions are committed. Here it is with each micro-batch.",
        Shown("MEDIUM", _ONCE, 3, "SHORT", "Transaction Boundary"),
        _any_case("poll", "interval", "connector"),
        "poll",
    ),
    _key(
        "transaction.boundary.interval.ms",
        "Interval between commits. Has no effect here.",
        Shown("LOW", _ONCE, 4, "SHORT", "Transaction boundary interval"),
        LONG,
    ),
    _key(
        "offsets.storage.topic",
        "Topic for the offsets of this connector. Has no effect here: they are in its checkpoint.",
        Shown("LOW", "offsets.topic", 1, "LONG", "Offsets topic"),
    ),
)
# Keys of plugins and clients, which have tables of their own.
_PREFIXES = (
    *(f"{name}." for name in CONVERTERS),
    "transforms.",
    "predicates.",
    "topic.creation.",
    "consumer.override.",
    "producer.override.",
    "admin.override.",
)


def keys_of(plugin: Plugin) -> tuple[Key, ...]:
    """All keys of a connector: those of every one, then its own."""
    shared = COMMON_KEYS + (SOURCE_KEYS if plugin.kind is PluginKind.SOURCE else SINK_KEYS)
    names = {key.option.name for key in shared}
    own = (option for option in plugin.options if option.name not in names and not option.is_pattern)
    return shared + tuple(Key(option, shown_by_default(option)) for option in own)


def shown_by_default(option: Option) -> Shown:
    return Shown("HIGH" if option.required else "MEDIUM", display_name=option.name)


def common_table(plugin: Plugin) -> OptionTable:
    """The keys of every connector of this kind."""
    shared = COMMON_KEYS + (SOURCE_KEYS if plugin.kind is PluginKind.SOURCE else SINK_KEYS)
    return OptionTable(tuple(key.option for key in shared))


def misspelt(config: Iterable[str], plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Keys that nobody knows but look like one that is known, with that one."""
    table = common_table(plugin) + plugin.options
    for name in config:
        if table.find(name) is None and not name.startswith(_PREFIXES):
            meant = nearest(name, table.names, cutoff=0.8)
            if meant is not None:
                yield name, meant


def part(config: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The keys below a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}


def with_worker_converters(config: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """With the worker's converters where the connector names none. Options of another converter do not carry over."""
    found = dict(config)
    for name in CONVERTERS:
        if name not in config:
            inherited = {key: value for key, value in worker.items() if key == name or key.startswith(f"{name}.")}
            found = {**inherited, **found}
    found.setdefault(CONVERTERS[2], SIMPLE_HEADERS)
    return found


Check = Callable[[Mapping[str, str]], Iterable[tuple[str, str]]]


def check_topics(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a sink connector's topics must be, as (key, message); the words are Connect's."""
    topics = [name.strip() for name in config.get(TOPICS, "").split(",") if name.strip()]
    regex = config.get(TOPICS_REGEX, "").strip()
    letters = config.get(DEAD_LETTER_TOPIC, "").strip()
    if bool(topics) == bool(regex):
        message = (
            f"{TOPICS} and {TOPICS_REGEX} are mutually exclusive options, but both are set."
            if topics
            else f"Must configure one of {TOPICS} or {TOPICS_REGEX}"
        )
        yield TOPICS, message
        yield TOPICS_REGEX, message
    if letters and letters in topics:
        yield (
            TOPICS,
            f"The DLQ topic '{letters}' may not be included in the list of topics "
            f"('{TOPICS}=[{', '.join(topics)}]') consumed by the connector",
        )
    if letters and regex and REGEX.wrong(regex) is None and re.fullmatch(regex, letters):
        yield (
            TOPICS_REGEX,
            f"The DLQ topic '{letters}' may not be matched by the regex for the topics "
            f"('{TOPICS_REGEX}={regex}') consumed by the connector",
        )

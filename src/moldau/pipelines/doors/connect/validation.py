"""What `PUT /connector-plugins/{class}/config/validate` answers, made from the option tables.

The shape, the order of keys and the words of errors are Connect's, since tools show and parse them. Secrets are hidden
as Connect hides them, and references (`${file:…}`) stay as they were given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.catalog import CONNECTORS, all_plugins, find_plugin
from moldau.pipelines.doors.connect.config import (
    CLASS,
    CONNECTOR_CLASS,
    CONVERTERS,
    PREDICATES,
    TRANSFORMS,
    Key,
    Shown,
    check_topics,
    keys_of,
    part,
    shown_by_default,
    type_name,
)
from moldau.pipelines.doors.connect.plugins import Plugin, PluginKind
from moldau.pipelines.model.kinds import BOOLEAN, has_reference
from moldau.pipelines.model.options import Option, OptionTable, is_secret

_HIDDEN = "[hidden]"
_NUMBERS = ("INT", "LONG", "SHORT", "DOUBLE")
_CONVERTER_KINDS = dict(zip(CONVERTERS, (PluginKind.CONVERTER,) * 2 + (PluginKind.HEADER_CONVERTER,), strict=True))


class _Aliased(NamedTuple):
    """Plugins that a connector names by aliases: `transforms=a` with `transforms.a.type`."""

    key: str
    kind: PluginKind
    group: str
    word: str  # of display names
    extra: tuple[Option, ...] = ()


_ALIASED = (
    _Aliased(
        TRANSFORMS,
        PluginKind.TRANSFORMATION,
        "Transforms",
        "Transformation",
        (
            Option("predicate", "Alias of the predicate that decides whether the transformation is applied."),
            Option("negate", "Apply it where the predicate does not hold.", BOOLEAN, default=False),
        ),
    ),
    _Aliased(PREDICATES, PluginKind.PREDICATE, "Predicates", "Predicate"),
)


def validate(config: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, Any]:
    """Raises ConfigError where Connect answers 400: without a class, or with one that nobody knows."""
    name = config.get(CONNECTOR_CLASS)
    if not name:
        raise ConfigError(f"Connector config contains no connector type: add {CONNECTOR_CLASS}")
    plugin = find_plugin(name, *CONNECTORS)
    keys = list(keys_of(plugin))
    for aliased in _ALIASED:
        keys += _aliased_keys(aliased, config)
    errors = _errors(plugin, config)
    infos = [_info(key, config, worker, errors) for key in keys]
    infos += [info for converter in reversed(CONVERTERS) for info in _converter_infos(converter, config)]
    count = sum(len(info["value"]["errors"]) for info in infos)
    groups = dict.fromkeys(key.shown.group for key in keys if key.shown.group)
    return {"name": name, "error_count": count, "groups": list(groups), "configs": infos}


def definitions(plugin: Plugin) -> list[dict[str, Any]]:
    """What `GET /connector-plugins/{class}/config` answers."""
    own = [Key(option, shown_by_default(option)) for option in plugin.options if not option.is_pattern]
    keys = keys_of(plugin) if plugin.kind in CONNECTORS else own
    return [_definition(key, {}) for key in keys]


def _errors(plugin: Plugin, config: Mapping[str, str]) -> dict[str, list[str]]:
    """What the tables cannot say, by key."""
    found: dict[str, list[str]] = {}
    checks = [*plugin.check(config), *(check_topics(config) if plugin.kind is PluginKind.SINK else ())]
    for name, kind in _CONVERTER_KINDS.items():
        checks += _class_errors(name, config.get(name), kind)
    for aliased in _ALIASED:
        for alias in _aliases(config, aliased.key):
            prefix = f"{aliased.key}.{alias}."
            checks += _class_errors(f"{prefix}type", config.get(f"{prefix}type"), aliased.kind)
            own = _plugin(config.get(f"{prefix}type"), aliased.kind)
            checks += [(prefix + key, message) for key, message in own.check(part(config, prefix))] if own else []
    for key, message in checks:
        found.setdefault(key, []).append(message)
    return found


def _class_errors(key: str, name: str | None, kind: PluginKind) -> Iterator[tuple[str, str]]:
    if name is None:
        return
    try:
        find_plugin(name, kind)
    except ConfigError as error:
        yield key, f"Invalid value {name} for configuration {key}: {error}"


def _plugin(name: str | None, kind: PluginKind) -> Plugin | None:
    try:
        return find_plugin(name or "", kind)
    except ConfigError:
        return None


def _aliases(config: Mapping[str, str], key: str) -> list[str]:
    return list(dict.fromkeys(alias.strip() for alias in config.get(key, "").split(",") if alias.strip()))


def _aliased_keys(aliased: _Aliased, config: Mapping[str, str]) -> Iterator[Key]:
    for alias in _aliases(config, aliased.key):
        prefix, group = f"{aliased.key}.{alias}.", f"{aliased.group}: {alias}"
        word = aliased.word.lower()
        yield Key(
            Option(f"{prefix}type", f"Class of the {word} {alias}.", CLASS, required=True),
            Shown("HIGH", group, 0, "LONG", f"{aliased.word} type for {alias}"),
        )
        yield Key(
            Option(f"{prefix}plugin.version", f"Version of the {word} {alias}."),
            Shown("HIGH", group, 1, "LONG", f"{aliased.word} version for {alias}"),
        )
        plugin = _plugin(config.get(f"{prefix}type"), aliased.kind)
        own = (*aliased.extra, *(plugin.options if plugin else OptionTable()))
        for order, option in enumerate((one for one in own if not one.is_pattern), 2):
            shown = shown_by_default(option)._replace(group=group, order=order)
            yield Key(_prefixed(option, prefix), shown)


def _prefixed(option: Option, prefix: str) -> Option:
    return replace(option, name=prefix + option.name)


def _converter_infos(converter: str, config: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The options of a converter that the connector names itself."""
    plugin = _plugin(config.get(converter), _CONVERTER_KINDS[converter])
    for option in plugin.options if plugin else ():
        yield _info(Key(_prefixed(option, f"{converter}."), shown_by_default(option)), config, {}, {})


def _info(
    key: Key, config: Mapping[str, str], worker: Mapping[str, str], errors: Mapping[str, list[str]]
) -> dict[str, Any]:
    name = key.option.name
    value, messages = _value(key.option, config, worker)
    shown = {
        "name": name,
        "value": value,
        "recommended_values": _recommended(name),
        "errors": [*messages, *errors.get(name, ())],
        "visible": True,
    }
    return {"definition": _definition(key, worker), "value": shown}


def _definition(key: Key, worker: Mapping[str, str]) -> dict[str, Any]:
    option, shown = key.option, key.shown
    default = worker.get(option.name) if option.name in CONVERTERS else option.default
    return {
        "name": option.name,
        "type": type_name(option),
        "required": option.required,
        "default_value": None if option.required else _text(default),
        "importance": shown.importance,
        "documentation": option.doc,
        "group": shown.group,
        "order": shown.order,
        "width": shown.width,
        "display_name": shown.display_name or option.name,
        "dependents": [],
    }


def _value(option: Option, config: Mapping[str, str], worker: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """As it is shown, and what is wrong with it."""
    name = option.name
    if name not in config:
        if option.required:
            return None, [f'Missing required configuration "{name}" which has no default value.']
        return _text(worker.get(name) if name in CONVERTERS else option.default), []
    given = config[name]
    shown = _HIDDEN if option.secret or is_secret(name) else given
    wrong = None if given is None else option.kind.wrong(given)
    if given is None or wrong is None:
        return (shown if given is None or shown == _HIDDEN or has_reference(given) else _plain(option, given)), []
    message = f"Invalid value {shown} for configuration {name}: {_reason(option, given, wrong)}"
    return (shown if _is_parsed(option, given) else None), [message]


def _plain(option: Option, given: str) -> str | None:
    return _text(option.kind.convert(given)) if type_name(option) in (*_NUMBERS, "LIST", "BOOLEAN") else given


def _is_parsed(option: Option, given: str) -> bool:
    """Whether the value has the right type, and only breaks a rule."""
    kind = type_name(option)
    if kind in _NUMBERS:
        return re.fullmatch(r"\s*-?\d+\s*", given) is not None
    return kind not in ("BOOLEAN", "CLASS")


def _reason(option: Option, given: str, wrong: str) -> str:
    """In Connect's words where it has some."""
    kind = type_name(option)
    least = re.search(r"(-?\d+) or more", wrong)
    if kind == "BOOLEAN":
        return "Expected value to be either true or false"
    if kind in _NUMBERS and not _is_parsed(option, given):
        return f"Not a number of type {kind}"
    if least:
        return f"Value must be at least {least[1]}"
    choices = option.kind.schema.get("enum")
    return f"String must be one of: {', '.join(choices)}" if choices else wrong


def _recommended(name: str) -> list[str]:
    kind = _CONVERTER_KINDS.get(name)
    return [plugin.name for plugin in all_plugins() if plugin.kind is kind] if kind else []


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

"""What the REST interface tells about plugins, from the tables of the Connect door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.catalog import CONNECTORS, all_plugins, find_plugin
from moldau.pipelines.doors.connect.config import keys_of, shown_by_default, type_name
from moldau.pipelines.doors.connect.plugins import Plugin
from moldau.pipelines.worker.herder import RestError
from moldau.version import __version__


def plugins(connectors_only: str) -> list[dict[str, str]]:
    """Under all names that people have in their files."""
    is_all = connectors_only.lower() == "false"
    return [
        {"class": name, "type": str(plugin.kind), "version": __version__}
        for plugin in all_plugins()
        if is_all or plugin.kind in CONNECTORS
        for name in plugin.names
    ]


def plugin_config(name: str) -> list[dict[str, Any]]:
    """The keys of a plugin, as `validate` describes them."""
    plugin = _found(name)
    if plugin.kind in CONNECTORS:
        keys = [(key.option, key.shown) for key in keys_of(plugin)]
    else:
        keys = [(option, shown_by_default(option)) for option in plugin.options]
    return [
        {
            "name": option.name,
            "type": type_name(option),
            "required": option.required,
            "default_value": None if option.default is None else _text(option.default),
            "importance": shown.importance,
            "documentation": option.doc,
            "group": shown.group,
            "width": shown.width,
            "display_name": shown.display_name,
            "dependents": [],
            "order": shown.order,
        }
        for option, shown in keys
    ]


def validated(
    name: str, config: Mapping[str, str | None], validate: Callable[[Mapping[str, str]], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The class in the body has to be the one of the path, or may be left out."""
    given = config.get("connector.class")
    if given is not None and _found(str(given)) is not _found(name):
        raise RestError(400, f"Included connector type {given} does not match request type {name}")
    return validate({"connector.class": name} | {key: value for key, value in config.items() if value is not None})


def type_of(config: Mapping[str, str]) -> str:
    try:
        return str(find_plugin(config.get("connector.class", ""), *CONNECTORS).kind)
    except ConfigError:
        return "unknown"


def _found(name: str) -> Plugin:
    try:
        return find_plugin(name)
    except ConfigError as error:
        raise RestError(404, f"Unknown plugin {name}: {error}") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

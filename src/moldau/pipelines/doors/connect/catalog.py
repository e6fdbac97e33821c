"""All plugins, found by class name or alias, as Connect finds them.

An alias is the last part of the class name, with or without the word for its kind: FileStreamSourceConnector or
FileStreamSource, JsonConverter or Json.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.plugins import Plugin, PluginKind

_HERE = "moldau.pipelines.doors.connect"
_MODULES = (
    "classes.file_stream",
    "classes.jdbc",
    "classes.debezium",
    "classes.http",
    "classes.elasticsearch",
    "classes.s3",
    "converters",
    "transforms",
)
_SUFFIXES = {
    PluginKind.SOURCE: "Connector",
    PluginKind.SINK: "Connector",
    PluginKind.CONVERTER: "Converter",
    PluginKind.HEADER_CONVERTER: "Converter",
    PluginKind.TRANSFORMATION: "Transformation",
    PluginKind.PREDICATE: "Predicate",
}
_WORDS = {PluginKind.SOURCE: "connector", PluginKind.SINK: "connector", PluginKind.HEADER_CONVERTER: "header converter"}
CONNECTORS = (PluginKind.SOURCE, PluginKind.SINK)


@cache
def all_plugins() -> tuple[Plugin, ...]:
    """In the order of the modules above."""
    modules = [importlib.import_module(f"{_HERE}.{name}") for name in _MODULES if find_spec(f"{_HERE}.{name}")]
    return tuple(plugin for module in modules for plugin in getattr(module, "PLUGINS", ()))


def find_plugin(name: str, *kinds: PluginKind) -> Plugin:
    """The plugin of this class name or alias; `kinds` are those that fit, by default all."""
    wanted = kinds or tuple(PluginKind)
    found = _by_name(wanted).get(name.strip())
    if found is not None:
        return found
    word = _WORDS.get(wanted[0], str(wanted[0]))
    meant = _meant(name, wanted)
    hint = f": did you mean {meant}?" if meant else f". There are: {', '.join(_short_names(wanted))}."
    raise ConfigError(f"there is no {word} {name or '(no name)'}{hint}")


def aliases(plugin: Plugin) -> tuple[str, ...]:
    """Short names, the shortest last."""
    found: dict[str, None] = {}
    for name in plugin.names:
        simple = name.rpartition(".")[2]
        found[simple] = None
        if pruned := simple.removesuffix(_SUFFIXES[plugin.kind]):
            found[pruned] = None
    return tuple(found)


@cache
def _by_name(kinds: tuple[PluginKind, ...]) -> Mapping[str, Plugin]:
    """Full names win over aliases, and among aliases the plugin that comes first."""
    plugins = [plugin for plugin in all_plugins() if plugin.kind in kinds]
    short = {alias: plugin for plugin in reversed(plugins) for alias in aliases(plugin)}
    return short | {name: plugin for plugin in plugins for name in plugin.names}


def _meant(name: str, kinds: tuple[PluginKind, ...]) -> str | None:
    """By the last part of its name: packages differ between vendors and versions."""
    known = _by_name(kinds)
    simple = nearest(name.rpartition(".")[2], [each for each in known if "." not in each])
    return known[simple].name if simple else None


def _short_names(kinds: tuple[PluginKind, ...]) -> Iterable[str]:
    return dict.fromkeys(aliases(plugin)[-1] for plugin in _by_name(kinds).values())

"""The transforms of a connector's configuration: `transforms`, `transforms.X.*`, `predicates` and `predicates.P.*`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.plugins import Frames, Plugin, PluginKind
from moldau.pipelines.doors.connect.transforms.checks import items
from moldau.pipelines.doors.connect.transforms.records import Predicate
from moldau.pipelines.doors.connect.transforms.tables import PREDICATES, TRANSFORMS
from moldau.pipelines.model.kinds import BOOLEAN
from moldau.pipelines.model.options import Given, options_hint

Find = Callable[..., Plugin]
"""find(class name, kind) gives the plugin, or raises ConfigError."""

_KINDS = {"transforms": PluginKind.TRANSFORMATION, "predicates": PluginKind.PREDICATE}
_OF_CHAIN = ("type", "predicate", "negate")  # keys of a transform that are not its own


def find(name: str, *kinds: PluginKind) -> Plugin:
    """A transform or predicate by its class name; the name may come without its package (`Cast$Value`)."""
    known = [plugin for plugin in (*TRANSFORMS, *PREDICATES) if not kinds or plugin.kind in kinds]
    for plugin in known:
        if name in plugin.names or name == simple_name(plugin.name):
            return plugin
    what = " or ".join(kinds) or "plugin"
    hint = options_hint(name, tuple(plugin.name for plugin in known), "Known ones are")
    if "." not in name:
        hint = options_hint(name, tuple(simple_name(plugin.name) for plugin in known), "Known ones are")
    raise ConfigError(f"{name} is not a {what} that is known here{hint}")


def simple_name(class_name: str) -> str:
    return class_name.rpartition(".")[2]


def chain(config: Mapping[str, str], find: Find = find) -> tuple[Frames, ...]:
    """The steps of a connector's transforms, in order. Raises ConfigError that names the key."""
    for key, message in problems(config, find):
        raise ConfigError(f"{key}: {message}")
    return tuple(_step(config, alias, find) for alias in items(config.get("transforms", "")))


def _step(config: Mapping[str, str], alias: str, find: Find) -> Frames:
    plugin, values = _configured(config, "transforms", alias, find)
    named = config.get(f"transforms.{alias}.predicate")
    predicate: Predicate | None = None
    if named is not None:
        found, its_values = _configured(config, "predicates", named, find)
        predicate = found.build(its_values)
    negate = BOOLEAN.convert(config.get(f"transforms.{alias}.negate", "false"))
    frames: Frames = plugin.build(values, predicate=predicate, negate=negate)
    return frames


def _configured(config: Mapping[str, str], group: str, alias: str, find: Find) -> tuple[Plugin, dict[str, object]]:
    plugin = find(config[f"{group}.{alias}.type"], _KINDS[group])
    own = own_keys(config, group, alias)
    try:
        return plugin, plugin.options.values({key: Given(value) for key, value in own.items()})
    except ConfigError as error:
        raise ConfigError(f"{group}.{alias}.{error}") from error


def own_keys(config: Mapping[str, str], group: str, alias: str) -> dict[str, str]:
    """The keys of one transform or predicate, without their prefix."""
    prefix = f"{group}.{alias}."
    own = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    return {key: value for key, value in own.items() if key not in _OF_CHAIN}


def problems(config: Mapping[str, str], find: Find = find) -> Iterator[tuple[str, str]]:
    """All that is wrong with the transforms and predicates of a configuration, as (key, message)."""
    for group in _KINDS:
        aliases = items(config.get(group, ""))
        if len({*aliases}) < len(aliases) or "" in aliases:
            yield group, f"Invalid value {config[group]} for configuration {group}: Duplicate or empty alias provided."
        for alias in dict.fromkeys(filter(None, aliases)):
            yield from _problems_of(config, group, alias, find)
    for alias in dict.fromkeys(items(config.get("transforms", ""))):
        yield from _predicate_problems(config, f"transforms.{alias}")


def _problems_of(config: Mapping[str, str], group: str, alias: str, find: Find) -> Iterable[tuple[str, str]]:
    prefix = f"{group}.{alias}"
    name = config.get(f"{prefix}.type")
    if not name:
        yield f"{prefix}.type", f'Missing required configuration "{prefix}.type" which has no default value.'
        return
    try:
        plugin = find(name, _KINDS[group])
    except ConfigError as error:
        yield f"{prefix}.type", str(error)
        return
    own = own_keys(config, group, alias)
    for option in plugin.options:
        if option.required and option.name not in own:
            missing = f'Missing required configuration "{option.name}" which has no default value.'
            yield f"{prefix}.{option.name}", missing
    for key, value in own.items():
        known = plugin.options.find(key)
        reason = known.kind.wrong(value) if known else None  # as in Connect, other keys have no effect
        if reason is not None:
            yield f"{prefix}.{key}", f"Invalid value {value} for configuration {key}: {reason}"
    for key, message in plugin.check(own):
        yield f"{prefix}.{key}", message


def _predicate_problems(config: Mapping[str, str], prefix: str) -> Iterable[tuple[str, str]]:
    known, named, negate = items(config.get("predicates", "")), f"{prefix}.predicate", f"{prefix}.negate"
    if named in config and config[named] not in known:
        hint = options_hint(config[named], known, "Its predicates are")
        yield named, f"The configuration has no predicate '{config[named]}'{hint}"
    if negate in config and named not in config:
        yield negate, f"There is no config '{named}' defining a predicate to be negated."
    if negate in config and (reason := BOOLEAN.wrong(config[negate])):
        yield negate, f"Invalid value {config[negate]} for configuration {negate}: {reason}"

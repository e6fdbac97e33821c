"""References in values: `${env:NAME}`, `${env:NAME:default}` and `${file:path:key}`, resolved when a pipeline starts.

They keep secrets out of files: what they stand for is never stored, printed or logged. A file has `key=value` lines, as
in Kafka's configuration providers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moldau.config.keys import nearest
from moldau.config.properties import parse_properties
from moldau.errors import ConfigError
from moldau.pipelines.model.options import Given, meant_word
from moldau.pipelines.model.places import Place

_REFERENCE = re.compile(r"\$\{(?P<kind>[a-z]+):(?P<rest>[^}]*)\}")
_KINDS = ("env", "file")
_HIDDEN_LENGTH_MIN = 4  # shorter values would be found in any text
_OPENED = re.compile(r"\$\{(?P<kind>[^}:]*)(?P<colon>:?)(?P<rest>[^}]*)(?P<end>\}?)")


def reference_mistake(value: Any) -> str | None:
    """What is wrong with a reference in a value, as far as it shows without resolving it."""
    if isinstance(value, Mapping | list):
        inside = value.values() if isinstance(value, Mapping) else value
        return next((mistake for item in inside if (mistake := reference_mistake(item)) is not None), None)
    if not isinstance(value, str):
        return None
    for found in _OPENED.finditer(value):
        kind, rest = found["kind"], found["rest"]
        if not found["end"]:
            return f"the reference '{found[0][:50]}' has no closing brace"
        if not found["colon"]:
            return f"{found[0]}: expected ${{env:{kind or 'NAME'}}} or ${{file:path:key}}"
        if kind not in _KINDS:
            meant = meant_word(kind.lower(), _KINDS)
            hint = f"did you mean '{meant}'?" if meant else "there are env and file"
            return f"{found[0]}: unknown kind of reference '{kind}': {hint}"
        if not rest.partition(":")[0] or (kind == "file" and not all(rest.rpartition(":"))):
            return f"{found[0]}: expected {'${env:NAME}' if kind == 'env' else '${file:path:key}'}"
    return None


_looked_up: dict[str, str] = {}  # the references that values came from, for `hidden`


def hidden(text: str) -> str:
    """A text without what references stand for: messages of Spark and of drivers repeat hosts, paths, expressions."""
    for value in sorted(_looked_up, key=len, reverse=True):
        text = text.replace(value, _looked_up[value])
    return text


def hidden_in(value: Any) -> Any:
    """`hidden` for all texts in a value of JSON."""
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, Mapping):
        return {name: hidden_in(item) for name, item in value.items()}
    return [hidden_in(item) for item in value] if isinstance(value, list | tuple) else value


def resolve(given: Mapping[str, Given], folder: Path) -> dict[str, Given]:
    """The options with every reference replaced by what it stands for."""
    return {name: replace(entry, value=_resolved(entry.value, folder, entry.place)) for name, entry in given.items()}


def _resolved(value: Any, folder: Path, place: Place | None) -> Any:
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _noted(match["kind"], match["rest"], folder, place), value)
    if isinstance(value, list):
        return [_resolved(item, folder, place) for item in value]
    if isinstance(value, Mapping):
        return {name: _resolved(item, folder, place) for name, item in value.items()}
    return value


def _noted(kind: str, rest: str, folder: Path, place: Place | None) -> str:
    value = _look_up(kind, rest, folder, place)
    name, _, default = rest.partition(":")
    is_default = kind == "env" and value == default  # it stands in the pipeline's file
    if len(value) >= _HIDDEN_LENGTH_MIN and not is_default:
        _looked_up[value] = f"${{{kind}:{name if kind == 'env' else rest}}}"
    return value


def _look_up(kind: str, rest: str, folder: Path, place: Place | None) -> str:
    where = f"{place}: " if place else ""
    if kind == "env":
        name, has_default, default = rest.partition(":")
        if name not in os.environ and not has_default:
            raise ConfigError(f"{where}${{env:{name}}}: the environment variable {name} is not set, and has no default")
        return os.environ.get(name, default)
    if kind == "file":
        path, _, key = rest.rpartition(":")
        return _from_file(folder / path, key, f"{where}${{file:{rest}}}")
    raise ConfigError(f"{where}${{{kind}:{rest}}}: expected ${{env:NAME}}, ${{env:NAME:default}} or ${{file:path:key}}")


def _from_file(path: Path, key: str, where: str) -> str:
    try:
        properties = parse_properties(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if key not in properties:
        meant = nearest(key, properties)
        raise ConfigError(f"{where}: {path} has no key '{key}'" + (f": did you mean '{meant}'?" if meant else ""))
    return properties[key]

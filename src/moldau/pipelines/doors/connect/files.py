"""Configuration files of workers and connectors, as `connect-standalone` takes them.

A connector's file has properties, or JSON: its configuration, or the body of a request that creates it
(`{"name": …, "config": {…}}`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moldau.config.properties import parse_properties
from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.config import NAME

OFFSETS_FILE = "offset.storage.file.filename"


def read_worker(path: Path) -> dict[str, str]:
    return parse_properties(_text(path))


def read_connector(path: Path) -> dict[str, str]:
    """The configuration of a connector, which has a name."""
    text = _text(path)
    config = _from_json(text, path) if text.lstrip().startswith("{") else parse_properties(text)
    if not config.get(NAME):
        raise ConfigError(f"{path}: the connector has no name: add for example {NAME}=local-file-source")
    return config


def checkpoint_folder(worker: dict[str, str]) -> str:
    """Where standalone connectors keep their places: beside the file in which Kafka keeps its offsets."""
    if not worker.get(OFFSETS_FILE):
        raise ConfigError(f"the worker's configuration has no {OFFSETS_FILE}: add for example /tmp/connect.offsets")
    return f"{Path(worker[OFFSETS_FILE]).absolute()}.checkpoints"


def _from_json(text: str, path: Path) -> dict[str, str]:
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if isinstance(found.get("config"), dict):
        name, config = found.get(NAME), found["config"]
        if config.setdefault(NAME, name) != name:
            raise ConfigError(f"{path}: the name in 'config' is {config[NAME]}, but the connector's is {name}")
        found = config
    wrong = [key for key, value in found.items() if not isinstance(value, str | int | float)]
    if wrong:
        raise ConfigError(f"{path}: {wrong[0]}: expected text")
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error

"""Pipeline files that are handed to a worker: checked before they are stored.

They may have SQL steps and the connectors that come with Moldau. Python functions and connectors of one's own are
refused: a worker loads no code because of a name in a request.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moldau.errors import ConfigError
from moldau.pipelines.doors.yaml_file import load_pipeline


def check_file(name: str, text: str) -> None:
    """Raises ConfigError with all that is wrong with it."""
    for problem in _code(_parsed(text)):
        raise ConfigError(f"pipeline {name}: {problem}: a worker runs no code of a request; use `moldau pipeline run`")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        path.write_text(text, "utf-8")
        try:
            pipeline = load_pipeline(path)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{folder}/", "")) from None
    if not pipeline.sinks:
        raise ConfigError(f"pipeline {name} has no sinks, so it would write nothing")


def _parsed(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the pipeline file is not YAML: {error}") from error


def _code(root: Any) -> Iterator[str]:
    parts = root if isinstance(root, dict) else {}
    for part in ("sources", "sinks", "steps"):
        for name, body in _items(parts.get(part)):
            connector = str(body.get("connector", ""))
            if "python" in body or ":" in connector or connector == "python":
                yield f"{part[:-1]} {name} is a function or class of Python"


def _items(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of a mapping by name, or a list of mappings with names."""
    entries = value.items() if isinstance(value, dict) else ((str(at), each) for at, each in enumerate(value or ()))
    return ((str(name), body) for name, body in entries if isinstance(body, dict))

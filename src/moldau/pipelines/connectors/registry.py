"""All connectors by name. Their modules are imported when they are asked for."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.connectors.base import Connector

BUILT_IN: Mapping[str, str] = {
    "cdc": "moldau.pipelines.connectors.change_capture.connector:ChangeCaptureConnector",
    "console": "moldau.pipelines.connectors.console:ConsoleConnector",
    "directory": "moldau.pipelines.connectors.directory:DirectoryConnector",
    "elasticsearch": "moldau.pipelines.connectors.elasticsearch:ElasticsearchConnector",
    "generator": "moldau.pipelines.connectors.generator:GeneratorConnector",
    "http": "moldau.pipelines.connectors.http:HttpConnector",
    "lines": "moldau.pipelines.connectors.lines:LinesConnector",
    "postgres": "moldau.pipelines.connectors.database.connector:PostgresConnector",
    "python": "moldau.pipelines.connectors.python:PythonConnector",
    "s3": "moldau.pipelines.connectors.object_store.connector:ObjectStoreConnector",
    "spark": "moldau.pipelines.connectors.spark_format:SparkConnector",
    "sqlite": "moldau.pipelines.connectors.database.connector:SqliteConnector",
    "topic": "moldau.pipelines.connectors.topic:TopicConnector",
}


def connector(name: str, folder: Path | None = None) -> Connector:
    """The connector of this name; a name with a colon is `module:Class`, found in `folder` or on Python's path."""
    target = BUILT_IN.get(name, name)
    if ":" not in target:
        meant = nearest(name, BUILT_IN)
        hint = f"did you mean '{meant}'?" if meant else f"there are {', '.join(BUILT_IN)}."
        raise ConfigError(f"unknown connector '{name}': {hint} Your own is `module:Class`.")
    module, _, attribute = target.partition(":")
    found = load_attribute(module, attribute, None if name in BUILT_IN else folder, f"connector '{name}'")
    if not (isinstance(found, type) and issubclass(found, Connector)):
        raise ConfigError(f"connector '{name}': {attribute} is not a subclass of moldau.pipelines.Connector")
    return found()


def load_attribute(module: str, attribute: str, folder: Path | None, owner: str) -> object:
    """An attribute of a module that is in `folder` or on Python's path."""
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's module raises when it is imported
        reason = f"{error or type(error).__name__}{_line_in(folder, error)}"
        raise ConfigError(f"{owner}: cannot import module '{module}': {reason}") from error
    if folder is not None and "pyspark" in sys.modules:
        _send_modules_of(folder.resolve())
    try:
        return getattr(loaded, attribute)
    except AttributeError:
        meant = nearest(attribute, vars(loaded))
        hint = f": did you mean '{meant}'?" if meant else ""
        raise ConfigError(f"{owner}: module '{module}' has no '{attribute}'{hint}") from None


def _line_in(folder: Path | None, error: BaseException) -> str:
    """Where in the user's modules an error was raised. An error of syntax says so itself."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if folder is not None and Path(frame.filename).is_relative_to(folder.resolve())]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _send_modules_of(folder: Path) -> None:
    """Spark's workers cannot import what was found in the folder: let it be sent with the functions that use it."""
    from pyspark import cloudpickle

    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if not file.is_relative_to(folder) or name == "__main__":
            continue
        # A folder below it that is on Python's path by itself, such as an environment, is none of the pipeline's.
        if file.relative_to(folder).parts[0].removesuffix(".py") == name.partition(".")[0]:
            cloudpickle.register_pickle_by_value(module)

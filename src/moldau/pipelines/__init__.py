"""Pipelines: topics, files and tables joined by Spark, described in a file or in Python, kept running by an engine.

`model/`       a pipeline as data: sources → steps → sinks, expectations, tests, settings; the option tables
`doors/`       read a format (a YAML file, Python calls) and return a `Pipeline`
`connectors/`  one file per counterpart, source and sink together
`engine/`      builds Spark queries from a pipeline, starts and supervises them

Nothing here knows the broker: pipelines work with any Kafka by its address. Importing this package loads neither Spark
nor YAML.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.pipelines.connectors.base import (
        BatchSink,
        Connector,
        Guarantee,
        ReadRequest,
        StreamSink,
        WriteRequest,
    )
    from moldau.pipelines.doors.python_api import (
        Handle,
        Pipeline,
        connector,
        console,
        directory,
        generator,
        lines,
        python_function,
        spark_format,
        topic,
    )
    from moldau.pipelines.model.options import Given, Option, OptionTable
    from moldau.pipelines.model.places import Problem

_HOMES = {
    "connectors.base": ("BatchSink", "Connector", "Guarantee", "ReadRequest", "StreamSink", "WriteRequest"),
    "doors.python_api": (
        "Handle",
        "Pipeline",
        "connector",
        "console",
        "directory",
        "generator",
        "lines",
        "python_function",
        "spark_format",
        "topic",
    ),
    "model.options": ("Given", "Option", "OptionTable"),
    "model.places": ("Problem",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BatchSink",
    "Connector",
    "Given",
    "Guarantee",
    "Handle",
    "Option",
    "OptionTable",
    "Pipeline",
    "Problem",
    "ReadRequest",
    "StreamSink",
    "WriteRequest",
    "connector",
    "console",
    "directory",
    "generator",
    "lines",
    "python_function",
    "spark_format",
    "topic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__

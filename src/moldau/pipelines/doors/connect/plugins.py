"""What a Connect configuration can name: connectors, converters, transforms and predicates.

A plugin is an entry in a table, found by its class name. No class is ever loaded because of a name in a request.
Its options are a table as those of the pipelines' own connectors, with Connect's keys, so that `validate` of the REST
interface, its documentation and the checks before a start come from one place.

Between a connector and its converters a record is a row with these columns, whatever its counterpart is:

    topic STRING, partition INT, key <any type>, value <any type>, timestamp TIMESTAMP,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>

`partition` and `timestamp` are null where the producer decides. Records of a sink also have `offset BIGINT`. A null
`value` is a tombstone. Nullable fields are Connect's optional ones; the name of a Connect schema is in the metadata of
its column (`SCHEMA_NAME`), its version, if it has one, too (`SCHEMA_VERSION`). A struct whose fields were only found in
the records, such as JSON without a schema, is marked `SCHEMALESS`: Connect has a map there, in which any field may be
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.pipelines.model.options import Given, OptionTable, Value
from moldau.pipelines.model.pipeline import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA_NAME = "connect.name"
SCHEMA_VERSION = "connect.version"
SCHEMALESS = "connect.schemaless"
RECORD_COLUMNS = ("topic", "partition", "key", "value", "timestamp", "headers")

Frames = Callable[["DataFrame"], "DataFrame"]


class PluginKind(StrEnum):
    """Connect's words for them."""

    SOURCE = "source"
    SINK = "sink"
    CONVERTER = "converter"
    HEADER_CONVERTER = "header_converter"
    TRANSFORMATION = "transformation"
    PREDICATE = "predicate"


@dataclass(frozen=True)
class ConnectorConfig:
    """A connector's configuration as its plugin gets it."""

    name: str
    given: Mapping[str, str]  # as the user wrote it, references (`${file:…}`) unresolved
    values: Mapping[str, Value]  # of the plugin's own options, with defaults, converted; references resolved
    folder: Path = field(default_factory=Path)  # relative paths are below it

    def unresolved(self, key: str) -> Given:
        """For options of the pipeline's connectors: references are resolved when the query starts."""
        return Given(self.given[key])


@dataclass(frozen=True)
class SourceParts:
    """What a source connector becomes: sources of a pipeline, each with how its rows become records."""

    sources: tuple[Source, ...]
    records: Frames | Mapping[str, Frames]  # one for all sources, or one each by name
    # For a source whose records have several types: the records of a micro-batch, one type at a time. Transforms and
    # converters then see each part, which is why they are applied to micro-batches and not to the stream.
    split: Callable[[DataFrame], Iterable[DataFrame]] | None = None


@dataclass(frozen=True)
class SinkParts:
    """What a sink connector becomes: a connector of pipelines that gets what `rows` makes of the records."""

    connector: str
    options: Mapping[str, Given]
    rows: Frames  # applied to the records of each micro-batch, after converters and transforms
    source: Mapping[str, Given] = field(
        default_factory=dict
    )  # options of the topic source: how long to collect records


@dataclass(frozen=True)
class Plugin:
    names: tuple[str, ...]  # class names; the first is the one that answers have
    kind: PluginKind
    options: OptionTable = field(default_factory=OptionTable)
    # SOURCE: ConnectorConfig → SourceParts; SINK: ConnectorConfig → SinkParts; for the others see their modules.
    build: Callable[..., Any] = field(default=lambda *_: None)
    # What the option table cannot say, as (key, message).
    check: Callable[[Mapping[str, str]], Iterable[tuple[str, str]]] = field(default=lambda _: ())

    @property
    def name(self) -> str:
        return self.names[0]

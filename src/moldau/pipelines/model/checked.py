"""A pipeline under check, and what the rules need to know of connectors, which the model does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from moldau.errors import ConfigError
from moldau.pipelines.model.common_options import SOURCE_OPTIONS
from moldau.pipelines.model.file_parts import MODES
from moldau.pipelines.model.kinds import has_reference
from moldau.pipelines.model.options import Given, OptionTable, Value
from moldau.pipelines.model.pipeline import Pipeline, Sink
from moldau.pipelines.model.places import Problem
from moldau.pipelines.model.schemas import Column, schema_columns


class ConnectorTables(Protocol):
    """What the rules need to know of a connector."""

    source_options: ClassVar[OptionTable | None]
    sink_options: ClassVar[OptionTable | None]
    identity: ClassVar[tuple[str, ...]]
    writes_alone: ClassVar[bool]
    modes: ClassVar[tuple[str, ...]]

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]: ...

    def columns(self, options: Mapping[str, Value]) -> str | None: ...


Lookup = Callable[[str], ConnectorTables]
"""The connector of a name. Raises ConfigError if there is none."""


@dataclass(frozen=True)
class Checked:
    """A pipeline under check, with what several rules need."""

    pipeline: Pipeline
    lookup: Lookup

    @property
    def view_names(self) -> tuple[str, ...]:
        return tuple(self.pipeline.views)

    def columns(self, view: str) -> tuple[Column, ...] | None:
        """The columns of a source, if its options are right and tell."""
        source = next((each for each in self.pipeline.sources if each.name == view), None)
        if source is None or any(has_reference(given.value) for given in source.options.values()):
            return None
        try:
            connector = self.lookup(source.connector)
            table = (connector.source_options or OptionTable()) + SOURCE_OPTIONS
            if any(table.check(source.options, "", None)):
                return None
            columns = connector.columns(table.values(source.options))
            return schema_columns(columns) if columns is not None else None
        except (ConfigError, ValueError):  # reported by other rules
            return None

    def modes(self, sink: Sink) -> tuple[str, ...]:
        try:
            return self.lookup(sink.connector).modes
        except ConfigError:
            return MODES


Rule = Callable[[Checked], Iterator[Problem]]

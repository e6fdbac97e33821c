"""The model: named sources → steps → sinks, with expectations, tests and settings.

All doors make this and the engine runs it, so a door never needs the engine and the engine never knows a door. A view
is a source or a step: both are DataFrames with a name that later steps and sinks use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from moldau.pipelines.model.options import Given, Value
from moldau.pipelines.model.places import Place

Row = Mapping[str, Value]


@dataclass(frozen=True)
class Source:
    name: str
    connector: str
    options: Mapping[str, Given] = field(default_factory=dict)  # the connector's and those of every source
    place: Place | None = None
    places: Mapping[str, Place] = field(default_factory=dict)  # of what is no option: `connector`

    @property
    def is_static(self) -> bool:
        """Whether it is read as a table in each micro-batch, and not as a stream."""
        return "static" in self.options and str(self.options["static"].value).lower() == "true"


@dataclass(frozen=True)
class Step:
    """A query in SQL, or a Python function from DataFrames to a DataFrame: exactly one of the two."""

    name: str
    sql: str | None = None
    python: str | Callable[..., Any] | None = None  # "module:function", or the function itself
    inputs: tuple[str, ...] = ()  # views that it reads, in the order of the function's parameters
    place: Place | None = None
    text_place: Place | None = None  # where the SQL text, or the name of the function, begins

    def place_in_text(self, position: int) -> Place | None:
        """Where a position in the SQL text is in the file."""
        start = self.text_place
        if start is None or self.sql is None:
            return self.place
        before = self.sql[:position].split("\n")
        return Place(start.file, start.line + len(before) - 1, start.column + len(before[-1]))


@dataclass(frozen=True)
class Sink:
    name: str
    view: str  # `from` in files
    connector: str
    mode: str = "append"  # Spark's output modes: append, update, complete
    options: Mapping[str, Given] = field(default_factory=dict)
    place: Place | None = None
    places: Mapping[str, Place] = field(default_factory=dict)  # of `from`, `connector`, `mode`
    # Functions from the DataFrame of a micro-batch to another, applied before it is written: for what depends on the
    # rows themselves, such as their schema. Doors set them; a file has no word for it.
    batch_steps: tuple[Callable[[Any], Any], ...] = ()


class Action(Enum):
    """What happens to a row that fails an expectation."""

    WARN = "warn"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"
    FAIL = "fail"


@dataclass(frozen=True)
class Expectation:
    name: str
    view: str
    condition: str  # SQL; a row fails if it is false or null
    action: Action = Action.WARN
    place: Place | None = None
    places: Mapping[str, Place] = field(default_factory=dict)  # of `view`, `condition`, `action`


@dataclass(frozen=True)
class Case:
    """A test: rows that sources deliver, and rows that views or sinks must then have."""

    name: str
    given: Mapping[str, tuple[tuple[Row, ...], ...]]  # source → micro-batches → rows
    expect: Mapping[str, tuple[Row, ...]]  # view or sink → rows, in any order
    place: Place | None = None


@dataclass(frozen=True)
class Pipeline:
    name: str
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    sinks: tuple[Sink, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    tests: tuple[Case, ...] = ()
    settings: Mapping[str, Given] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)  # relative paths and Python modules are looked up here
    file: str | None = None
    place: Place | None = None  # of its name

    @property
    def views(self) -> Mapping[str, Source | Step]:
        views: tuple[Source | Step, ...] = (*self.sources, *self.steps)
        return {view.name: view for view in views}

    def expectations_of(self, view: str) -> Iterator[Expectation]:
        return (expectation for expectation in self.expectations if expectation.view == view)

    def needed_by(self, view: str) -> set[str]:
        """This view and all that it depends on."""
        views, reached, open_views = self.views, set[str](), [view]
        while open_views:
            name = open_views.pop()
            if name in reached or name not in views:
                continue
            reached.add(name)
            found = views[name]
            open_views += found.inputs if isinstance(found, Step) else ()
        return reached

    def sources_of(self, view: str) -> tuple[Source, ...]:
        """The sources that a view depends on, in the order of the pipeline."""
        needed = self.needed_by(view)
        return tuple(source for source in self.sources if source.name in needed)

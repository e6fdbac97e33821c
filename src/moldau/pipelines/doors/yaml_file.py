"""A pipeline from a YAML file.

This module knows the shape of a file. What names, options and queries may be is checked on the model (model/check.py),
for all doors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from moldau.config.keys import nearest
from moldau.errors import ConfigError, InvalidPipelineError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.doors.python_functions import view_parameters
from moldau.pipelines.doors.yaml_nodes import Node, items, read_nodes
from moldau.pipelines.doors.yaml_slips import take_out_slips
from moldau.pipelines.model.check import check, check_together
from moldau.pipelines.model.file_parts import EXPECTATION, PARTS, SINK, STEP, TEST
from moldau.pipelines.model.options import Given, options_hint
from moldau.pipelines.model.pipeline import Action, Case, Expectation, Pipeline, Row, Sink, Source, Step
from moldau.pipelines.model.places import Place, Placed, Problem, Severity
from moldau.pipelines.model.sql_names import views_read

_Entry = TypeVar("_Entry", Source, Step, Sink, Expectation)

SUFFIXES = (".yaml", ".yml")
_ENTRIES = {
    "sources": "`connector` and its options",
    "steps": "`sql` or `python`",
    "sinks": "`from`, `connector` and its options",
    "expect": "`view`, `condition` and `action`",
}


def load_pipeline(path: str | Path) -> Pipeline:
    """The pipeline of a file. Raises InvalidPipelineError with everything that is wrong with it."""
    (pipeline,) = _valid(*read_pipelines([Path(path)]))
    return pipeline


def load_pipelines(paths: Sequence[str | Path]) -> list[Pipeline]:
    """The pipelines of files and of all files in folders. Raises InvalidPipelineError as `load_pipeline` does."""
    return _valid(*read_pipelines(pipeline_files(paths)))


def _valid(pipelines: list[Pipeline], problems: list[Problem]) -> list[Pipeline]:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise InvalidPipelineError(errors)
    return pipelines


def read_pipelines(files: Sequence[Path]) -> tuple[list[Pipeline], list[Problem]]:
    """The pipelines that can be read, and what is wrong with each and with all of them together."""
    pipelines: list[Pipeline] = []
    problems: list[Problem] = []
    for file in files:
        pipeline, found = read_pipeline(file)
        problems += found
        if pipeline is not None:
            pipelines.append(pipeline)
    together = ((pipeline, partial(connector, folder=pipeline.folder)) for pipeline in pipelines)
    return pipelines, problems + check_together(together)


def read_pipeline(path: str | Path) -> tuple[Pipeline | None, list[Problem]]:
    """The pipeline as far as it can be read, and all problems, in the order of the file."""
    try:
        root, problems = read_nodes(Path(path))
        problems += take_out_slips(root)
        reader = _Reader(Path(path), problems)
        pipeline = reader.pipeline(root)
        if pipeline is not None and reader.is_whole:
            found = check(pipeline, partial(connector, folder=pipeline.folder))
            # What looks unused may be used by what could not be read.
            reader.problems += [each for each in found if not reader.problems or each.severity is Severity.ERROR]
    except InvalidPipelineError as error:
        return None, [problem for problem in error.problems if isinstance(problem, Problem)]
    return pipeline, sorted(reader.problems, key=_position)


def pipeline_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files themselves, and for a folder all YAML files in it, by name."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file())
            if not inside:
                raise ConfigError(f"there is no pipeline in {path}: no file ends in {' or '.join(SUFFIXES)}")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise ConfigError(f"there is no file {path}")
    return list(dict.fromkeys(found))


def _position(problem: Problem) -> tuple[int, int]:
    return (problem.place.line, problem.place.column) if problem.place else (0, 0)


class _Reader:
    """Reads parts of a file; what it cannot read becomes a problem, and it reads on."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.folder = path.parent
        self.problems = problems
        # If a part of the file is missing, names in others look unknown: nothing is said about those.
        self.is_whole = not problems

    def pipeline(self, root: Node) -> Pipeline | None:
        if not isinstance(root.value, dict):
            self._wrong("a pipeline is a mapping with sources, steps and sinks", root)
            return None
        parts = self._parts(root, PARTS.names, "a pipeline")
        self.is_whole = self.is_whole and len(parts) == len(root.value)
        name = self._text(parts.get("name"), "name") or self.path.name.removesuffix(self.path.suffix)
        sources = self._each(parts.get("sources"), "sources", self._source)
        steps = self._each(parts.get("steps"), "steps", self._step)
        views = [*(source.name for source in sources), *(step.name for step in steps)]
        steps = [self._with_inputs(step, views) for step in steps]
        by_default = steps[-1].name if steps else sources[0].name if len(sources) == 1 else ""
        sinks = self._each(parts.get("sinks"), "sinks", partial(self._sink, by_default))
        settings = parts.get("settings")
        return Pipeline(
            name=name,
            sources=tuple(sources),
            steps=tuple(steps),
            sinks=tuple(sinks),
            expectations=tuple(self._each(parts.get("expect"), "expect", self._expectation)),
            tests=tuple(self._tests(parts.get("tests"))),
            settings=self._options(settings, ()) if self._is_mapping(settings, "settings") and settings else {},
            folder=self.folder,
            file=str(self.path),
            place=parts["name"].place if "name" in parts else root.place,
        )

    def _source(self, name: str, node: Node, place: Place) -> Source:
        owner = f"source {name}"
        connector = self._needed(node, "connector", owner, place)
        return Source(name, connector, self._options(node, ("connector",)), place, _places(node, "connector"))

    def _step(self, name: str, node: Node, place: Place) -> Step:
        """Without a query if it cannot be read: others may still name it."""
        owner = f"step {name}"
        parts = self._parts(node, STEP.names, owner)
        if len(parts) != 1:
            found = "it has both" if parts else "it has neither"
            if parts or not node.value:  # else an unknown word has been reported
                self.problems.append(Problem(f"{owner} needs either `sql` or `python`: {found}", place))
            return Step(name, place=place)
        ((kind, value),) = parts.items()
        text = self._text(value, f"{owner}: {kind}")
        sql, python = (text, None) if kind == "sql" else (None, text)
        return Step(name, sql, python, place=place, text_place=value.text_place)

    def _with_inputs(self, step: Step, views: Iterable[str]) -> Step:
        """SQL finds tables whatever their case is; a parameter of a function is the name of a view as it stands."""
        if step.sql is not None:
            return replace(step, inputs=views_read(step.sql, [name for name in views if name != step.name]))
        try:
            return replace(step, inputs=view_parameters(str(step.python), self.folder) if step.python else ())
        except ConfigError as error:
            self.problems.append(Problem(f"step {step.name}: {error}", step.text_place))
            return step

    def _sink(self, view: str, name: str, node: Node, place: Place) -> Sink:
        owner = f"sink {name}"
        own = SINK.names
        parts = node.value if isinstance(node.value, dict) else {}
        return Sink(
            name,
            self._text(parts.get("from"), f"{owner}: from") or view,
            self._needed(node, "connector", owner, place),
            self._text(parts.get("mode"), f"{owner}: mode") or "append",
            self._options(node, own),
            place,
            _places(node, *own),
        )

    def _expectation(self, name: str, node: Node, place: Place) -> Expectation:
        owner = f"expectation {name}"
        parts = self._parts(node, EXPECTATION.names, owner)
        given = self._text(parts.get("action"), f"{owner}: action") or Action.WARN.value
        actions = {action.value: action for action in Action}
        if given not in actions:
            message = f"{owner} has no action '{given}'{options_hint(given, tuple(actions))}"
            self.problems.append(Problem(message, parts["action"].place))
        return Expectation(
            name,
            self._needed(node, "view", owner, place),
            self._needed(node, "condition", owner, place),
            actions.get(given, Action.WARN),
            place,
            _places(node, *EXPECTATION.names),
        )

    def _tests(self, node: Node | None) -> Iterator[Case]:
        if node is None or node.value is None:
            return
        if not isinstance(node.value, list):
            self._wrong("tests: expected a list, each with `given` and `expect`", node)
            return
        for number, test in enumerate(node.value, 1):
            if not isinstance(test.value, dict):
                self._wrong(f"test {number}: expected a mapping with `given` and `expect`", test)
                continue
            parts = self._parts(test, TEST.names, f"test {number}")
            name = self._text(parts.get("name"), f"test {number}: name") or f"test {number}"
            for part in ("given", "expect"):
                if part not in parts and len(parts) == len(test.value):  # else an unknown word has been reported
                    self.problems.append(Problem(f"test '{name}' needs `{part}`", test.place))
            yield Case(
                name,
                self._rows_by_name(parts.get("given"), f"test '{name}': given", is_batched=True),
                self._rows_by_name(parts.get("expect"), f"test '{name}': expect", is_batched=False),
                test.place,
            )

    def _rows_by_name(self, node: Node | None, owner: str, *, is_batched: bool) -> Placed:
        if node is None or not self._is_mapping(node, owner):
            return Placed({}, {})
        found: dict[str, Any] = {}
        for name, rows, _ in items(node):
            where = f"{owner}: {name}"
            if rows.value is None:
                found[name] = ((),) if is_batched else ()
            elif not isinstance(rows.value, list):
                self._wrong(f"{where}: expected a list of rows", rows)
            elif is_batched and any(isinstance(item.value, list) for item in rows.value):
                found[name] = tuple(self._rows(batch, where) for batch in rows.value)
            else:
                found[name] = (self._rows(rows, where),) if is_batched else self._rows(rows, where)
        return Placed(found, node.keys)

    def _rows(self, node: Node, owner: str) -> tuple[Row, ...]:
        if not isinstance(node.value, list):
            self._wrong(f"{owner}: expected a list of rows, as the other micro-batches are", node)
            return ()
        rows = []
        for row in node.value:
            if isinstance(row.value, dict):
                rows.append(row.plain())
            else:
                self._wrong(f"{owner}: a row is a mapping of columns to values", row)
        return tuple(rows)

    def _each(self, node: Node | None, part: str, read: Callable[[str, Node, Place], _Entry]) -> list[_Entry]:
        """Every named entry of a part of the file, as `read` returns it."""
        entries = []
        for name, value, place in items(node) if node is not None and self._is_mapping(node, part) else ():
            if isinstance(value.value, dict):
                entries.append(read(name, value, place))
            else:
                self._wrong(f"{part}: {name}: expected a mapping with {_ENTRIES[part]}", value)
                self.is_whole = False
        return entries

    def _is_mapping(self, node: Node | None, owner: str) -> bool:
        """An empty part is as good as none."""
        if node is None or node.value is None:
            return False
        if not isinstance(node.value, dict):
            self._wrong(f"{owner}: expected a mapping of names", node)
            self.is_whole = False
        return isinstance(node.value, dict)

    def _parts(self, node: Node, known: tuple[str, ...], owner: str) -> dict[str, Node]:
        found = {}
        for name, value, place in items(node):
            if name in known:
                found[name] = value
            else:
                self.problems.append(Problem(f"{owner} has no '{name}'{options_hint(name, known)}", place))
        return found

    def _options(self, node: Node, without: tuple[str, ...]) -> dict[str, Given]:
        return {name: Given(value.plain(), value.place, key) for name, value, key in items(node) if name not in without}

    def _needed(self, node: Node, name: str, owner: str, place: Place) -> str:
        """The text of this name; empty, with a problem, if there is none."""
        assert isinstance(node.value, dict)
        if name in node.value:
            return self._text(node.value[name], f"{owner}: {name}") or ""
        meant = nearest(name, node.value)
        problem = (
            Problem(f"{owner} has no '{meant}': did you mean '{name}'?", node.keys[meant])
            if meant
            else Problem(f"{owner} needs `{name}`", place)
        )
        if problem not in self.problems:
            self.problems.append(problem)
        return ""

    def _text(self, node: Node | None, owner: str) -> str | None:
        if node is None:
            return None
        if not isinstance(node.value, str) or not node.value.strip():
            self._wrong(f"{owner}: expected text", node)
            return None
        return node.value

    def _wrong(self, expected: str, node: Node) -> None:
        self.problems.append(Problem(f"{expected}, not {node.kind}", node.place))


def _places(node: Node, *names: str) -> dict[str, Place]:
    return {name: value.place for name, value, _ in items(node) if name in names}

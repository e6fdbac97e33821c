"""A YAML file as a tree of nodes that know their line and column.

The values are those of YAML 1.2: text, numbers, true, false and null. Where YAML 1.1 read something else into plain
text (`yes`, `on`, `010`, `1_000`), the text is refused, because editors and other tools still disagree about it. A date
is text here. The tree is built from PyYAML's events without recursion, so limits hold before memory is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from moldau.errors import InvalidPipelineError
from moldau.pipelines.model.places import Place, Placed, Problem

FILE_BYTES_MAX = 1 << 20  # tests with many rows fit; a data file given by mistake does not
DEPTH_MAX = 50  # nested rows have a few levels
NODES_MAX = 100_000  # with aliases counted as often as they are used: ten lines can otherwise stand for a billion

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OLD_NUMBER = re.compile(r"[-+]?0[0-9][0-9_]*|[-+]?0b[01_]+|[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?")
_UNSPACED = re.compile(r"[ -]*[A-Za-z_][\w .-]*:(?=[^\s:/])(?!.*: )(?!.*:$)")
_OLD_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_CONSTANTS: Mapping[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

Scalar = str | int | float | bool | None


@dataclass(slots=True)
class Node:
    """A scalar, a list of nodes, or a mapping of names to nodes."""

    value: Scalar | list[Node] | dict[str, Node]
    place: Place
    # Where the text of a scalar begins: after the quote, or on the line below `|`. None if lines were folded, so that
    # positions in the text are not positions in the file.
    text_place: Place | None
    keys: dict[str, Place] = field(default_factory=dict)  # where the keys of a mapping stand
    size: int = 1  # nodes in it, itself included

    @property
    def kind(self) -> str:
        """For messages: what the node is."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "an empty value" if self.value is None else repr(self.value)

    def plain(self) -> Any:
        """The value without nodes. Mappings still know where their keys stand."""
        if isinstance(self.value, dict):
            return Placed({name: node.plain() for name, node in self.value.items()}, self.keys)
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_nodes(path: Path) -> tuple[Node, list[Problem]]:
    """The root of a file and what is wrong with its YAML but does not keep us from reading on.

    Raises InvalidPipelineError if the file cannot be read, is not YAML or exceeds a limit.
    """
    file = str(path)
    text = _read_text(path, file)
    builder = _Builder(file, text.rstrip().split("\n"))
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.add(event)
    except yaml.MarkedYAMLError as error:
        raise InvalidPipelineError([*builder.problems, _syntax_problem(error, builder)]) from error
    except yaml.YAMLError as error:
        raise InvalidPipelineError([Problem(f"this is not valid YAML: {error}", Place(file, 1, 1))]) from error
    if builder.root is None:
        raise InvalidPipelineError([Problem("the file is empty", Place(file, 1, 1))])
    return builder.root, builder.problems


def _read_text(path: Path, file: str) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidPipelineError([Problem(f"cannot read {file}: {reason}")]) from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidPipelineError([Problem(f"{file} has more than {FILE_BYTES_MAX >> 20} MiB: is it a pipeline?")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place_at(data[: error.start].decode("utf-8", "replace"), file)
        raise InvalidPipelineError([Problem("the file is not UTF-8: save it in that encoding", place)]) from error
    if found := _UNPRINTABLE.search(text):
        problem = f"the character U+{ord(found[0]):04X} is not allowed in YAML: write it as an escape in double quotes"
        raise InvalidPipelineError([Problem(problem, _place_at(text[: found.start()], file))])
    return text


def _place_at(before: str, file: str) -> Place:
    return Place(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def _syntax_problem(error: yaml.MarkedYAMLError, builder: _Builder) -> Problem:
    """What the parser says in words of people who write files, and where they made the mistake."""
    said = f"{error.problem} {error.context}"
    message, at_start = next(
        ((text, at_start) for pattern, text, at_start in _SYNTAX_ERRORS if re.search(pattern, said)),
        (str(error.problem), False),
    )
    mark = error.problem_mark or error.context_mark
    mark = error.context_mark or mark if at_start else mark
    place = Place(builder.file, mark.line + 1, mark.column + 1) if mark else Place(builder.file, 1, 1)
    if place.line > len(builder.lines):  # the file ended too early
        place = Place(builder.file, len(builder.lines), len(builder.lines[-1]) + 1)
    line = builder.lines[place.line - 1]
    if (unspaced := _unspaced(builder, place.line)) is not None:
        message, place = "a space is missing after ':'", unspaced
    elif "\t" in line[: len(line) - len(line.lstrip())]:
        message = "a line is indented with a tab: use spaces"
    elif builder.last_quote is not None and builder.last_quote[1] == place.line and not at_start:
        message, place = "the quote that begins here ends too late, or never", builder.last_quote[0]
    return Problem(f"this is not valid YAML: {message}", place)


def _unspaced(builder: _Builder, number: int) -> Place | None:
    """`name:counts`, in the line of the error or the one before: YAML takes it for text that goes on."""
    earlier = (each for each in range(number - 1, 0, -1) if builder.lines[each - 1].strip(" ").strip("#"))
    for each in (number, next(earlier, number)):
        if found := _UNSPACED.match(builder.lines[each - 1]):
            return Place(builder.file, each, found.end() + 1)
    return None


# What libyaml and PyYAML say, what is meant, and whether the place is where the thing began.
_SYNTAX_ERRORS = (
    ("scanning a quoted scalar", "the quote that begins here is never closed", True),
    ("expected ',' or '\\]'", "the list that begins here is not closed, or a comma is missing", True),
    ("expected ',' or '\\}'", "the mapping that begins here is not closed, or a comma is missing", True),
    ("could not find expected ':'", "expected ': ' after this name", True),
    (
        "mapping values are not allowed",
        "a second ': ' in a line, or a wrong indentation; put text with ': ' in quotes",
        False,
    ),
    ("expected (key|'-' indicator|<block end>)", "the indentation matches no line above, or ': ' is missing", False),
    ("cannot start any token", "text that begins with this character must be in quotes", False),
)


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been seen."""

    node: Node
    anchor: str | None
    key: Node | None = None


class _Builder:
    def __init__(self, file: str, lines: list[str]) -> None:
        self.file = file
        self.lines = lines
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self.last_quote: tuple[Place, int] | None = None  # of several lines: where it begins, in which line it ends
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._is_document_seen = False

    def add(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            if self._is_document_seen:
                raise self._refusal("a file holds one pipeline: put the second document in a file of its own", event)
            self._is_document_seen = True
        elif isinstance(event, yaml.ScalarEvent):
            self._finish(self._scalar(event), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._finish(self._alias(event), None)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            if len(self._open) >= DEPTH_MAX:
                raise self._refusal(f"lists and mappings are nested deeper than {DEPTH_MAX} levels", event)
            place = self._place(event)
            self._check_tag(event, place)
            value: list[Node] | dict[str, Node] = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            self._open.append(_Open(Node(value, place, place), event.anchor))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            done = self._open.pop()
            self._finish(done.node, done.anchor)

    def _finish(self, node: Node, anchor: str | None) -> None:
        """A whole node: it goes into the list or mapping that is open."""
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent.node.value, list):
            parent.node.value.append(node)
        elif isinstance(parent.node.value, dict):
            if parent.key is None:
                parent.key = node
                return
            self._put(parent.node, parent.key, node)
            parent.key = None
        parent.node.size += node.size
        if parent.node.size > NODES_MAX:
            raise InvalidPipelineError(
                [Problem(f"the file holds more than {NODES_MAX:,} values, counting aliases", node.place)]
            )

    def _put(self, parent: Node, key: Node, node: Node) -> None:
        if isinstance(key.value, list | dict):
            self.problems.append(Problem(f"a key must be text, not {key.kind}", key.place))
            return
        name = "null" if key.value is None else str(key.value)
        name = name.lower() if isinstance(key.value, bool) else name
        if name == "<<":
            self.problems.append(Problem("merge keys (`<<`) are not supported: repeat the entries", key.place))
            return
        assert isinstance(parent.value, dict)
        if name in parent.value:
            first = parent.keys[name]
            self.problems.append(Problem(f"duplicate key '{name}': the first is in line {first.line}", key.place))
            return
        parent.value[name] = node
        parent.keys[name] = key.place

    def _alias(self, event: yaml.AliasEvent) -> Node:
        if event.anchor in self._anchors:
            return self._anchors[event.anchor]
        if any(each.anchor == event.anchor for each in self._open):
            raise self._refusal(f"the alias *{event.anchor} is inside of what it stands for", event)
        raise self._refusal(f"there is no anchor &{event.anchor} before this alias", event)

    def _scalar(self, event: yaml.ScalarEvent) -> Node:
        place = self._place(event)
        self._check_tag(event, place)
        value = event.value if event.style else self._plain_scalar(event.value, place)
        if event.style == "|":
            return Node(value, place, self._block_start(place))
        if event.style in ("'", '"') and event.end_mark.line > event.start_mark.line:
            self.last_quote = place, event.end_mark.line + 1
        is_folded = event.style == ">" or event.end_mark.line > event.start_mark.line
        return Node(value, place, None if is_folded else replace(place, column=place.column + bool(event.style)))

    def _block_start(self, place: Place) -> Place:
        for number in range(place.line, len(self.lines)):
            line = self.lines[number]
            if line.strip():
                return Place(self.file, place.line + 1, len(line) - len(line.lstrip(" ")) + 1)
        return place

    def _plain_scalar(self, text: str, place: Place) -> Scalar:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if (meaning := _OLD_BOOLEANS.get(text.lower())) is not None:
            self.problems.append(
                Problem(
                    f"'{text}' is {meaning} in YAML 1.1 and text in YAML 1.2: write {meaning}, or \"{text}\"", place
                )
            )
        elif _INTEGER.fullmatch(text):
            return int(text) if len(text) < 1000 else text
        elif _HEXADECIMAL.fullmatch(text):
            return int(text, 16)
        elif _FLOAT.fullmatch(text):
            return float(text)
        elif _SPECIAL_FLOAT.fullmatch(text):
            return float(text.replace(".", "").lower())
        elif _OLD_NUMBER.fullmatch(text):
            self.problems.append(
                Problem(
                    f"{text} is not the same number in YAML 1.1 and 1.2: write plain digits, or use quotes",
                    place,
                )
            )
        return text

    def _check_tag(self, event: yaml.NodeEvent, place: Place) -> None:
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.append(Problem(f"tags are not supported: remove {tag}; quotes make a value text", place))

    def _place(self, event: yaml.Event) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refusal(self, message: str, event: yaml.Event) -> InvalidPipelineError:
        return InvalidPipelineError([*self.problems, Problem(message, self._place(event))])


def items(node: Node) -> Iterator[tuple[str, Node, Place]]:
    """The entries of a mapping: name, value, and where the name stands."""
    if isinstance(node.value, dict):
        for name, value in node.value.items():
            yield name, value, node.keys[name]

"""Parts of a file that are indented too far: `sinks` in the middle of `steps`.

YAML takes them for something else, and each line of them would be a problem of its own. They are found by their names
before the file is read, and taken out, so that there is one answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from moldau.pipelines.doors.yaml_nodes import Node
from moldau.pipelines.model.places import Place, Problem

# The parts whose entries have names, and words that such an entry has: an entry with one of them is no part.
_ENTRIES = {
    "sources": ("connector",),
    "steps": ("sql", "python"),
    "sinks": ("connector", "from"),
    "expect": ("view", "condition"),
}
_PARTS = (*_ENTRIES, "tests", "settings")
_NEVER_OPTIONS = ("sources", "steps", "sinks")  # a connector of one's own may have an option `settings`


def take_out_slips(root: Node) -> Iterator[Problem]:
    if not isinstance(root.value, dict):
        return
    missing = [name for name in _PARTS if name not in root.value]
    for part, words in _ENTRIES.items():
        node = root.value.get(part)
        if node is None or not isinstance(node.value, dict):
            continue
        for name, entry in list(node.value.items()):
            if name not in node.value:
                continue
            if name in missing and not _has_one(entry, words):
                yield _slip(name, part, node.keys[name])
                _take_out(node, name, and_below=entry.value is None)
            elif isinstance(entry.value, dict):
                allowed = missing if part in ("steps", "expect") else [*filter(_NEVER_OPTIONS.__contains__, missing)]
                for inner in [inner for inner in entry.value if inner in allowed]:
                    yield _slip(inner, f"{part}: {name}", entry.keys[inner])
                    _take_out(entry, inner, and_below=entry.value[inner].value is None)


def _has_one(entry: Node, words: Collection[str]) -> bool:
    return isinstance(entry.value, dict) and any(word in entry.value for word in words)


def _slip(name: str, where: str, place: Place) -> Problem:
    return Problem(f"`{name}` is indented too far, so it is a part of `{where}`: start the line with `{name}:`", place)


def _take_out(node: Node, name: str, *, and_below: bool) -> None:
    """Of a line that slipped alone, what follows belongs to it."""
    assert isinstance(node.value, dict)
    names = list(node.value)
    for each in names[names.index(name) :] if and_below else [name]:
        if each in node.value:
            del node.value[each], node.keys[each]

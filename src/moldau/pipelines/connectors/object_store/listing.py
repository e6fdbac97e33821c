"""Which objects are new.

Object stores list by name, and names say nothing about time. So an object is new if its name is not among those that
were read, and it is not older than the newest one that was read by more than a window (`late after`). An offset has the
objects of its batch, by which it can be read again, and of the objects in the window a fingerprint of each name:

    {"objects": [["clicks/partition=0/clicks+0+0000000000.json", 1234]], "newest": 1763430000000, "seen": ["x3…", …]}

An object that is replaced within the window is not read again; one that is replaced later is read as a new one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.fs as pafs

from moldau.errors import ConfigError
from moldau.pipelines.connectors.object_store.stores import Store, reaching

_SEEN_MAX = 200_000  # about 3 MB in each offset of the checkpoint


class Found(NamedTuple):
    name: str  # below the prefix
    size: int
    modified_ms: int


def listed(store: Store) -> list[Found]:
    """All objects with something in them. Names that begin with a dot or an underscore are not for readers."""
    files, root = store.opened()
    with reaching(store):
        infos = files.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    found = (
        Found(info.path[len(root) :].lstrip("/"), info.size, info.mtime_ns // 1_000_000)
        for info in infos
        if info.type == pafs.FileType.File and info.size
    )
    return [each for each in found if not any(part.startswith((".", "_")) for part in each.name.split("/"))]


def next_offset(start: Mapping[str, Any], found: Iterable[Found], files_max: int, window_ms: int) -> Mapping[str, Any]:
    """The offset behind the next new objects, oldest first; `start` itself if there are none."""
    seen: Sequence[str] = start.get("seen", [])
    known = set(seen)
    oldest = start.get("newest", 0) - window_ms
    fingerprints = {each: fingerprint(each.name) for each in found if each.modified_ms > oldest}
    new = sorted((each.modified_ms, each) for each, mark in fingerprints.items() if mark not in known)[:files_max]
    if not new:
        return start
    newest = max(start.get("newest", 0), new[-1][0])
    read = {fingerprints[each] for _, each in new}
    # What has left the window, or the store, cannot come again.
    kept = sorted(
        mark
        for each, mark in fingerprints.items()
        if (mark in known or mark in read) and each.modified_ms > newest - window_ms
    )
    if len(kept) > _SEEN_MAX:
        raise ConfigError(
            f"{len(kept)} objects came within `late after`, and at most {_SEEN_MAX} can be remembered: make it shorter"
        )
    return {"objects": [[each.name, each.size] for _, each in new], "newest": newest, "seen": kept}


def fingerprint(name: str) -> str:
    return base64.b64encode(hashlib.blake2b(name.encode(), digest_size=9).digest()).decode()

"""The unit in which stores keep metadata: the records of one append, or a whole image, as one JSON object.

It names the epoch of its writer and the version that it leads to, so that a missing entry is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from moldau.errors import StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record, record_from_json, record_to_json

FORMAT = 1


def append_entry(epoch: int, version: int, records: Sequence[Record]) -> bytes:
    return _encode({"epoch": epoch, "version": version, "records": [*map(record_to_json, records)]})


def snapshot_entry(epoch: int, image: MetadataImage) -> bytes:
    records = [record_to_json(record) for record in image.to_records()]
    return _encode({"format": FORMAT, "epoch": epoch, "version": image.version, "records": records})


def read_snapshot(entry: dict[str, Any]) -> MetadataImage:
    if entry.get("format") != FORMAT:
        raise StorageError(f"unsupported format {entry.get('format')!r}, expected {FORMAT}")
    # Its records are fewer than those that led to it.
    return read_append(MetadataImage(version=int(entry["version"]) - len(entry["records"])), entry)


def read_append(image: MetadataImage, entry: dict[str, Any]) -> MetadataImage:
    """The image with what `entry` holds; StorageError where it does not follow on `image`."""
    try:
        version = int(entry["version"])
        image = image.apply(map(record_from_json, entry["records"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(str(error)) from error
    if image.version != version:
        raise StorageError(f"expected version {image.version}, found {version}")
    return image


def _encode(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=True).encode("ascii")

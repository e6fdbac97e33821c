"""The formats of objects: their extensions and compressions. Without Arrow, since lint reads this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NONE = "none"
GZIP = "gzip"


class Format(NamedTuple):
    extension: str  # with {0} for what the compression adds
    compressions: Mapping[str, str]  # what each adds to the extension; the first is the default
    has_lines: bool = True  # of one column, `value`


_OF_LINES = {NONE: "", GZIP: ".gz"}
FORMATS: Mapping[str, Format] = {
    "json": Format(".json{0}", _OF_LINES),
    "text": Format(".txt{0}", _OF_LINES),
    "bytes": Format(".bin{0}", _OF_LINES),
    "parquet": Format("{0}.parquet", {"snappy": ".snappy", NONE: "", GZIP: ".gz", "zstd": ".zstd"}, has_lines=False),
    "avro": Format("{0}.avro", {NONE: "", "deflate": "", "bzip2": ""}, has_lines=False),
}


def default_compression(format_name: str) -> str:
    return next(iter(FORMATS[format_name].compressions))


def extension(format_name: str, compression: str) -> str:
    found = FORMATS[format_name]
    return found.extension.format(found.compressions[compression])

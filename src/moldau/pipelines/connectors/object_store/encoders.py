"""Encodes rows as the content of an object: lines (JSON, text, bytes), Parquet or Avro.

The same rows give the same bytes: gzip gets no time, and Avro's marker between blocks is made of the object's name.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from fastavro import parse_schema
from fastavro.write import Writer

from moldau.pipelines.connectors.object_store.formats import GZIP, NONE

_GROUP_ROWS = 100_000  # of a row group in Parquet, at most
_GROUP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Encoding:
    """How objects of a sink are encoded."""

    format: str
    compression: str
    separator: bytes = b"\n"
    has_nulls: bool = True  # JSON: fields that are null are written
    avro_schema: str = ""  # JSON

    def start(self, name: str) -> Encoder:
        return _ENCODERS.get(self.format, _Lines)(self, name)


class Encoder(ABC):
    def __init__(self, encoding: Encoding, name: str) -> None:
        self._encoding = encoding
        self._content = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 (the caller of finish does)
        self._start(name)

    @abstractmethod
    def _start(self, name: str) -> None: ...

    @abstractmethod
    def add(self, rows: pa.RecordBatch) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    def finish(self) -> BinaryIO:
        """The content; the caller closes it."""
        self._end()
        return self._content


class _Lines(Encoder):
    def _start(self, name: str) -> None:
        is_gzip = self._encoding.compression == GZIP
        self._lines: BinaryIO = (
            cast("BinaryIO", gzip.GzipFile("", "wb", fileobj=self._content, mtime=0)) if is_gzip else self._content
        )

    def add(self, rows: pa.RecordBatch) -> None:
        separator = self._encoding.separator
        self._lines.write(separator.join([*rows.column(0).to_pylist(), b""]))

    def _end(self) -> None:
        if self._lines is not self._content:
            self._lines.close()


class _Parquet(Encoder):
    def _start(self, name: str) -> None:
        self._writer: pq.ParquetWriter | None = None
        self._group: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._group.append(rows)
        is_full = sum(len(batch) for batch in self._group) >= _GROUP_ROWS
        if is_full or sum(batch.nbytes for batch in self._group) >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._group)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._content, table.schema, compression=self._encoding.compression)
        self._writer.write_table(table, row_group_size=len(table))
        self._group = []

    def _end(self) -> None:
        if self._group:
            self._write_group()
        if self._writer is not None:
            self._writer.close()


class _Avro(Encoder):
    def _start(self, name: str) -> None:
        codec = "null" if self._encoding.compression == NONE else self._encoding.compression
        marker = hashlib.sha256(name.encode()).digest()[:16]
        schema = parse_schema(json.loads(self._encoding.avro_schema))
        self._writer: Any = Writer(self._content, schema, codec, sync_marker=marker)

    def add(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            self._writer.write(row)

    def _end(self) -> None:
        self._writer.flush()


_ENCODERS: Mapping[str, type[Encoder]] = {"parquet": _Parquet, "avro": _Avro}

"""JSON values, read in bulk by Arrow's parser.

All values of a batch become one text with a line `{"_":[<value>]}` each, so any JSON can be a value, not only objects.
A value cannot run into the next line, because there is a closing bracket in between and a JSON string contains no
line break. Nor can it end its line early, because values that close a bracket they did not open are rejected first.
Unknown fields are ignored, missing ones are null.

A block with a record that Arrow rejects is split, at that record if Arrow names it. The few remaining records are read
one by one (`json_records`), and so are types that Arrow's parser does not support (maps).

A schema is inferred when the DataFrame is created and stays the same for all of its queries. Fields that appear later
are ignored, fields that disappear are null, and a value of another type makes the record bad. A restarted query infers
its schema again, so long-lived queries should specify it.

The rules are those of Spark's `from_json`; `json_records` lists the differences. In addition, a record with text after
the value is bad, the value `null` is null, and an empty value is bad.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import types as t

from moldau.errors import ConfigError, RecordFormatError
from moldau.spark.formats import json_records
from moldau.spark.formats.columns import (
    ColumnOptions,
    ColumnReader,
    ColumnWriter,
    Decoded,
    Sample,
    array_of,
    arrow_type,
    reason,
)
from moldau.spark.formats.ddl import schema_option
from moldau.spark.formats.json_inference import infer_type
from moldau.spark.formats.json_text import JsonWriter
from moldau.spark.formats.text import without_bad_utf8

_SAMPLE_ROWS = 1000
# Smaller blocks cost more to set up than reading their records one by one.
_BLOCK_ROWS_MIN = 16
# Arrow uses 32-bit sizes for a block.
_BLOCK_BYTES_MAX = 256 * 1024 * 1024
# The block size after a bad record: small enough to read again cheaply, large enough to be worth setting up.
_BLOCK_ROWS_AFTER_ERROR = 512
# A batch with more bad blocks than this is read record by record, which is cheaper than to find the good ones.
_BAD_BLOCKS_MAX = 250

_HEAD, _BETWEEN, _TAIL = b'{"_":[', b']}\n{"_":[', b"]}"
_BAD_ROW = re.compile(r"in row (\d{1,9})$")  # a value quoted earlier in the message may end in digits
# Decimals that Arrow would scale by more than its table of powers has, which makes it read past the end of the table;
# and escapes that can hide one: digits, signs and exponents.
_UNSCALABLE = (
    r'(?:^|[:\[,\s"])[-+]?[\d.]+[eE][-+]?\d{2,}(?:$|[\s"\],}\\])'
    r"|\.\d{39,}|\\u00(?:3\d|[46]5|2[bBdDeE])"
)


def reader(options: ColumnOptions, sample: Sample, given: t.DataType | None) -> ColumnReader:
    text = options.get("schema")
    if text:
        return JsonReader(schema_option(options.named("schema"), text))
    if given is not None and not isinstance(given, t.BinaryType):
        return JsonReader(given)
    rows = options.number("schema.sample", _SAMPLE_ROWS)
    inferred = infer_type(sample(options.column, rows))
    if inferred is None:
        raise ConfigError(
            f"no record to infer the schema of the {options.column} from: give it in option "
            f"{options.named('schema')}, like 'id BIGINT, name STRING'"
        )
    return JsonReader(inferred)


def writer(options: ColumnOptions, spark_type: t.DataType) -> ColumnWriter:
    written = JsonWriter()
    try:
        written.encode(pa.array([], arrow_type(spark_type)))
    except RecordFormatError as error:
        raise ConfigError(f"column {options.column}: {error}") from error
    return written


class JsonReader:
    def __init__(self, spark_type: t.DataType) -> None:
        json_records.reader(spark_type)  # raises on the driver if JSON cannot represent the type
        self.spark_type = spark_type
        self._arrow_type = arrow_type(spark_type)
        self._block_type = _block_type(self._arrow_type)
        self._has_decimals = "decimal256" in str(self._block_type)

    def decode(self, raw: pa.Array) -> Decoded:
        good, reasons = without_bad_utf8(raw)
        blocks = list(self._blocks(good, reasons))
        return Decoded(pa.concat_arrays(blocks) if blocks else pa.nulls(0, self._arrow_type), reasons)

    def _blocks(self, values: pa.Array, reasons: dict[int, str]) -> Iterator[pa.Array]:
        left = [(0, len(values))]
        bad_blocks = 0
        while left:
            start, end = left.pop()
            block = values[start:end]
            if self._block_type is None or end - start < _BLOCK_ROWS_MIN or bad_blocks > _BAD_BLOCKS_MAX:
                if end > start:
                    yield self._one_by_one(block, start, reasons)
                continue
            try:
                yield self._block(block)
            except pa.ArrowInvalid as error:
                bad_blocks += 1
                left.extend(reversed(list(pairwise(_cuts(start, end, str(error))))))

    def _block(self, values: pa.Array) -> pa.Array:
        if values.nbytes > _BLOCK_BYTES_MAX:
            raise pa.ArrowInvalid("a block too large")
        _check_brackets(values)
        if self._has_decimals:
            _refuse(pc.index(pc.match_substring_regex(values, _UNSCALABLE), True).as_py(), "an unscalable decimal")
        whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pc.fill_null(values, b"null"))
        text = b"".join((_HEAD, pc.binary_join(whole, _BETWEEN)[0].as_buffer(), _TAIL))
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([("_", pa.list_(self._block_type))]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        lists = table.column(0).combine_chunks()
        _check_one_value_each(lists, len(values))
        return _settled(lists.values, self._arrow_type)

    def _one_by_one(self, values: pa.Array, first: int, reasons: dict[int, str]) -> pa.Array:
        read = json_records.reader(self.spark_type)
        rows = []
        bad: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                rows.append(None if value is None else read(value))
            except ValueError as error:
                rows.append(None)
                bad[row] = reason(error)
        array = array_of(rows, self._arrow_type, bad)
        reasons.update({first + row: why for row, why in bad.items()})
        return array


def _cuts(start: int, end: int, error: str) -> tuple[int, ...]:
    """Return where to split a block that was rejected."""
    if end - start > _BLOCK_ROWS_AFTER_ERROR:
        return (*range(start, end, _BLOCK_ROWS_AFTER_ERROR), end)
    found = _BAD_ROW.search(error)
    row = start + int(found[1]) if found else end
    return (start, row, row + 1, end) if row < end else (start, (start + end) // 2, end)


def _refuse(row: int, why: str) -> None:
    """Raise ArrowInvalid for a row that Arrow must not read; -1 means there is none."""
    if row >= 0:
        raise pa.ArrowInvalid(f"{why} in row {row}")


def _check_brackets(values: pa.Array) -> None:
    from moldau.spark.formats.json_brackets import first_unopened  # compiled; the driver does not need it

    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    _refuse(first_unopened(np.frombuffer(data or b"", np.uint8), bounds), "a bracket closed that was not opened")


def _check_one_value_each(lists: pa.ListArray, rows: int) -> None:
    if len(lists) != rows:
        raise pa.ArrowInvalid("values of more than one line")
    _refuse(pc.index(pc.not_equal(lists.value_lengths(), 1), True).as_py(), "no single value")


def _block_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to request from Arrow's parser for this type, or None if the parser does not support it."""
    if pa.types.is_map(kind):
        return None
    if pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal256(76, kind.scale)  # the parser counts digits before it scales; the cast rejects too many
    if pa.types.is_list(kind):
        element = _block_type(kind.value_type)
        return None if element is None else pa.list_(kind.value_field.with_type(element))
    if pa.types.is_struct(kind):
        fields = [(field, _block_type(field.type)) for field in kind]
        if not fields or any(inner is None for _, inner in fields):
            return None
        return pa.struct([field.with_type(inner) for field, inner in fields])
    return kind


def _settled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert the parser's result to the final type. Raises ArrowInvalid for a text that is not such a value."""
    if array.type == kind:
        return array
    if pa.types.is_binary(kind):
        return _base64(array)
    if pa.types.is_list(kind):
        values = _settled(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_struct(kind):
        columns = [_settled(array.field(index), kind.field(index).type) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    return array.cast(kind)


def _base64(array: pa.Array) -> pa.Array:
    try:
        values = [None if text is None else base64.b64decode(text, validate=True) for text in array.to_pylist()]
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    return pa.array(values, pa.binary())

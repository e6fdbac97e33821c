"""Writes columns as JSON in bulk. Every step works on whole columns.

The rules are those of Spark's `to_json`: null fields are omitted, maps are objects, binary is base64, and NaN and
infinities are strings (`"NaN"`). Timestamps are UTC with microseconds, while Spark writes only milliseconds.
"""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pyarrow.compute as pc

from moldau.errors import RecordFormatError

_CONTROLS = r"[\x00-\x1f]"


class JsonWriter:
    def encode(self, typed: pa.Array) -> pa.Array:
        return _texts(typed)


def _texts(array: pa.Array) -> pa.Array:
    """Return JSON as binary; null for null."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _with_nulls_of(array, _objects(array))
    if pa.types.is_map(kind):
        entries = _joined(_names(array.keys), b":", _or_null(_texts(array.items)))
        return _with_nulls_of(array, _joined(b"{", _lists(array, entries), b"}"))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _with_nulls_of(array, _joined(b"[", _lists(array, _or_null(_texts(array.values))), b"]"))
    return _atoms(array)


def _with_nulls_of(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, b"null")


def _joined(*parts: pa.Array | bytes) -> pa.Array:
    return pc.binary_join_element_wise(*(pa.scalar(p, pa.binary()) if isinstance(p, bytes) else p for p in parts), b"")


def _objects(array: pa.Array) -> pa.Array:
    # Each field begins with a comma, so that a missing one leaves no gap. The bracket replaces the first comma.
    fields = []
    for index in range(array.type.num_fields):
        name = json.dumps(array.type.field(index).name, ensure_ascii=False)
        fields.append(pc.fill_null(_joined(f",{name}:".encode(), _texts(array.field(index))), b""))
    if not fields:
        return pa.repeat(pa.scalar(b"{}", pa.binary()), len(array))
    return _joined(pc.binary_replace_slice(_joined(*fields), 0, 1, b"{"), b"}")


def _lists(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.binary_join(pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), texts), b",")


def _names(keys: pa.Array) -> pa.Array:
    return _strings(keys if pa.types.is_string(keys.type) else keys.cast(pa.string()))


def _atoms(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(array.cast(pa.string()))
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        encoded = [None if value is None else b'"%b"' % base64.b64encode(value) for value in array.to_pylist()]
        return pa.array(encoded, pa.binary())
    if pa.types.is_timestamp(kind):
        text = pc.strftime(array.cast(pa.timestamp("us", kind.tz)).cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S")
        return _joined(b'"', text.cast(pa.binary()), b'Z"' if kind.tz else b'"')
    if pa.types.is_date(kind):
        return _joined(b'"', array.cast(pa.string()).cast(pa.binary()), b'"')
    if pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string()).cast(pa.binary())
    raise RecordFormatError(f"type {kind} cannot be written as JSON: cast it to a string")


def _floats(array: pa.Array) -> pa.Array:
    # Write 1.0 as in Spark: a reader that infers types would take 1 for an integer.
    texts = pc.replace_substring_regex(array.cast(pa.string()), r"^(-?\d+)$", r"\1.0").cast(pa.binary())
    if pc.all(pc.is_finite(array)).as_py() in (True, None):
        return texts
    names = pc.if_else(pc.is_nan(array), b'"NaN"', pc.if_else(pc.greater(array, 0), b'"Infinity"', b'"-Infinity"'))
    return pc.if_else(pc.is_finite(array), texts, names)


def _strings(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, _CONTROLS)).as_py():
        dumped = [None if text is None else json.dumps(text, ensure_ascii=False) for text in array.to_pylist()]
        return pa.array(dumped, pa.string()).cast(pa.binary())
    escaped = pc.replace_substring(pc.replace_substring(array, "\\", "\\\\"), '"', '\\"')
    return _joined(b'"', escaped.cast(pa.binary()), b'"')

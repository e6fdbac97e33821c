"""The interface of a format, which decodes and encodes a column of bytes.

A format is a module with two functions, `reader(options, sample, given)` and `writer(options, spark_type)`. The objects
they return are pickled on the driver and used in the tasks. A reader does not raise an error for a bad record: its
value is null in `Decoded.values`, and `Decoded.reasons` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from moldau.errors import ConfigError
from moldau.spark.options import Options

# Reasons appear in log lines and record headers. Their first words say what is wrong.
REASON_CHARS_MAX = 300

Sample = Callable[[str, int], Sequence[bytes | None]]  # (column, rows) -> some values of that column


class Decoded(NamedTuple):
    values: pa.Array  # one for each raw value; null if that was null or bad
    reasons: Mapping[int, str]  # row -> why it could not be decoded


class ColumnReader(Protocol):
    @property
    def spark_type(self) -> DataType: ...

    def decode(self, raw: pa.Array) -> Decoded: ...


class ColumnWriter(Protocol):
    def encode(self, typed: pa.Array) -> pa.Array:
        """Return binary values. Raises RecordFormatError for a value that does not fit the schema."""


class ColumnOptions(NamedTuple):
    """The options of one column, without its prefix: `schema` means `value.schema`."""

    options: Options
    column: str

    def get(self, name: str) -> str | None:
        return self.options.get(self.named(name))

    def named(self, name: str) -> str:
        return f"{self.column}.{name}"

    def number(self, name: str, default: int) -> int:
        return self.options.number(self.named(name), default) or default

    def required(self, name: str, what: str) -> str:
        value = self.get(name)
        if not value:
            raise ConfigError(f"option {self.named(name)} is missing: give {what}")
        return value

    def text_or_file(self, name: str, what: str) -> str:
        """Return the option if it begins like JSON; otherwise it is the path of the file to return."""
        value = self.required(name, what)
        return value if value.lstrip()[:1] in ("{", "[", '"') else self._file(name, value).decode()

    def file(self, name: str, what: str) -> bytes:
        return self._file(name, self.required(name, what))

    def _file(self, name: str, path: str) -> bytes:
        try:
            with open(path.removeprefix("file://"), "rb") as file:
                return file.read()
        except OSError as error:
            raise ConfigError(f"option {self.named(name)}={path}: {error.strerror}") from error


def arrow_type(spark_type: DataType) -> pa.DataType:
    """Return the exact Arrow type that Spark expects for this type."""
    return to_arrow_type(spark_type, timezone="UTC")


def reason(error: BaseException | str) -> str:
    return " ".join(str(error).split())[:REASON_CHARS_MAX] or type(error).__name__


def array_of(rows: list[Any], kind: pa.DataType, reasons: dict[int, str]) -> pa.Array:
    """Convert Python values to an array. A value that does not fit the type becomes null and gets a reason."""
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        for row, value in enumerate(rows):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
                reasons[row] = reason(error)
    return pa.array([None if row in reasons else value for row, value in enumerate(rows)], kind)

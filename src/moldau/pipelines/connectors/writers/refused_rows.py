"""Rows that a server refuses: they fail the batch, or are left out with a warning or without a word.

A task returns what was refused, and goes on with the rows behind it, so that one pass over a batch finds them all. The
driver remembers these rows by a digest until the batch is repeated. If the pipeline has dead letters, the search for
bad records then finds the records that these rows were made of, by `trial`, which sends nothing.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.errors import MoldauError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

SCHEMA = "digest STRING, reason STRING, rows BIGINT"
FAIL, WARN, IGNORE = "fail", "warn", "ignore"
# As many as a search for bad records takes for records at fault; more mean that something else is.
REFUSED_MAX = 20

logger = logging.getLogger(__name__)

# What was refused in the last attempt of each sink of this process: reasons by digest.
_remembered: dict[str, dict[str, str]] = {}


def digest(*parts: bytes | str | None) -> str:
    encoded = (part.encode() if isinstance(part, str) else part or b"" for part in parts)
    return hashlib.sha256(b"".join(encoded)).hexdigest()


class TooManyRefusedError(Exception):
    """The task stops: the batch fails anyway."""


@dataclass
class Refusals:
    """Of one task."""

    action: str
    found: list[tuple[str, str]] = field(default_factory=list)
    more: int = 0

    def add(self, row_digest: str, reason: str) -> None:
        if len(self.found) < REFUSED_MAX:
            self.found.append((row_digest, reason))
        else:
            self.more += 1
        if self.action == FAIL and len(self.found) == REFUSED_MAX:
            raise TooManyRefusedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = [*((one, reason, 1) for one, reason in self.found), *([("", "", self.more)] if self.more else [])]
        digests, reasons, counts = zip(*rows, strict=True) if rows else ((), (), ())
        yield pa.record_batch(
            [pa.array(digests, pa.string()), pa.array(reasons, pa.string()), pa.array(counts, pa.int64())],
            names=["digest", "reason", "rows"],
        )


@dataclass(frozen=True)
class RefusedRows:
    """Of one sink. `columns` are those whose digest identifies a row."""

    sink: str  # with its checkpoint: what it is known by in this process
    action: str
    columns: tuple[str, ...]

    def settle(self, found: list[Row], what: str) -> None:
        """Called with what the tasks of a batch returned. `what` says who refused: "POST https://…"."""
        rows = sum(row["rows"] for row in found)
        reasons = {row["digest"]: row["reason"] for row in found if row["digest"]}
        if not rows:
            _remembered.pop(self.sink, None)
            return
        first = next(iter(reasons.values()))
        if self.action == FAIL:
            _remembered[self.sink] = reasons
            raise MoldauError(f"{what} refused {rows} {'row' if rows == 1 else 'rows'} of the batch: {first}")
        if self.action == WARN:
            logger.warning("%s refused %d rows, which are left out; the first: %s", what, rows, first)

    def trial(self, rows: DataFrame) -> DataFrame:
        """Fails on rows that were refused."""
        from pyspark.sql import functions as F  # noqa: N812

        reasons = _remembered.get(self.sink)
        if not reasons:
            return rows
        parts = (F.coalesce(F.col(name).cast("binary"), F.lit(b"")) for name in self.columns)
        row_digest = F.sha2(F.concat(*parts), 256)
        check = F.lit(True)
        for known, reason in reasons.items():
            check = F.when(row_digest == known, F.raise_error(F.lit(reason)).cast("boolean")).otherwise(check)
        return rows.where(check)

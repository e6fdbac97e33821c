"""Change capture as Spark sees it: offsets are positions (`positions`), a batch is snapshots of tables or changes.

The driver decides where a batch ends without reading changes; one task reads them, since transactions have an order and
a slot one reader. Each table's snapshot is a task of its own.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from moldau.pipelines.connectors.change_capture.changes import Change, ChangeStream, Shape
from moldau.pipelines.connectors.change_capture.database import Database, Table, connect
from moldau.pipelines.connectors.change_capture.forms import Form
from moldau.pipelines.connectors.change_capture.positions import Position, Snapshot
from moldau.pipelines.connectors.change_capture.snapshots import Barrier, HeldSnapshot, publish, snapshot_rows
from moldau.spark.plain_errors import plain_errors

_LOOK_S = 0.2  # how often the database is asked whether its log has grown
_ADVANCE_S = 1.0
_TABLES_S = 10.0  # how often it is asked for new tables
# A backlog of at least this is read without asking first whether it has changes of the tables.
_PROBED_BYTES_MAX = 1024 * 1024
# A new table waits for older transactions to end: so long at a time, then the others go on for a while.
_BARRIER_S, _BARRIER_PAUSE_S, _BARRIER_POLL_S = 5.0, 30.0, 0.05
# Of an Arrow batch: what a task holds in memory.
_BATCH_ROWS, _BATCH_BYTES = 5_000, 4 * 1024 * 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CaptureSpec:
    """The options of the connector, as JSON in an option of Spark's; what may be secret is in another."""

    tables: list[str]  # regular expressions
    slot: str
    publication: str
    publication_mode: str
    snapshot: str  # initial, never, only
    excluded: list[str]  # regular expressions of columns
    batch_bytes_max: int
    heartbeat_ms: int
    heartbeat_query: str
    form: str  # pickled

    @cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(table) for table in self.tables]

    @cached_property
    def excluded_columns(self) -> list[re.Pattern[str]]:
        return [re.compile(column) for column in self.excluded]

    @cached_property
    def rows(self) -> Form:
        form: Form = cloudpickle.loads(base64.b64decode(self.form))
        return form

    def shape(self, table: Table) -> Shape:
        return Shape.of(table.schema, table.name, table.columns, self.excluded_columns)


def pickled(form: Form) -> str:
    return base64.b64encode(cloudpickle.dumps(form)).decode()


@dataclass(frozen=True)
class SnapshotPart(InputPartition):
    table: Table
    lsn: int
    export: str | None


@dataclass(frozen=True)
class ChangesPart(InputPartition):
    start: Mapping[str, Any]
    end_lsn: int


class CaptureSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._spec = CaptureSpec(**json.loads(options["spec"]))
        self._conninfo = options["secret.conninfo"]

    def schema(self) -> Any:
        return self._spec.rows.columns

    @plain_errors()
    def reader(self, schema: Any) -> DataSourceReader:
        return TablesReader(self._spec, self._conninfo)

    @plain_errors()
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return CaptureStreamReader(self._spec, self._conninfo)


class TablesReader(DataSourceReader):
    """For previews and tables: the rows as they are now. Neither slot nor publication is made."""

    def __init__(self, spec: CaptureSpec, conninfo: str) -> None:
        self._spec, self._conninfo = spec, conninfo

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        database = Database(self._conninfo)
        tables = database.tables_of(self._spec.tables)
        database.close()
        return [SnapshotPart(table, 0, None) for table in tables.values()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotPart)
        return read_snapshot(partition, self._spec, self._conninfo)


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, spec: CaptureSpec, conninfo: str) -> None:
        self._spec, self._conninfo = spec, conninfo
        self._database = Database(conninfo)
        self._held: HeldSnapshot | None = None
        self._held_for: Mapping[str, Any] | None = None  # the offset of the batch that reads with it
        self._target: int | None = None  # availableNow: nothing that commits later is read
        self._looked = self._listed = self._barrier_tried = float("-inf")
        self._moved = self._beaten = time.monotonic()
        self._done, self._advanced = 0, float("-inf")  # what Spark has committed, and when the slot learnt of it
        self._tables: dict[str, Table] = {}
        self._is_checked = False

    def __reduce__(self) -> Any:
        return CaptureStreamReader, (self._spec, self._conninfo)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._database.flushed_lsn()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        now = time.monotonic()
        if now - self._looked < _LOOK_S and self._target is None:
            return start
        self._looked = now
        self._release(start)
        self._check()
        position = Position.of(start)
        if position is None:
            return self._first()
        slot = self._database.slot_position(self._spec.slot, position.lsn)
        self._advance(slot.lsn)
        self._beat(now)
        new = self._new_tables(position, now)
        if new:
            snapshotted = self._with_snapshots(position, new)
            if snapshotted is not None:
                return snapshotted
        return start if self._spec.snapshot == "only" else self._further(position, start, now)

    def _check(self) -> None:
        if not self._is_checked:
            self._database.check_server()
            self._is_checked = True

    def _first(self) -> dict[str, Any]:
        """The first batch of a query: the slot, then snapshots."""
        tables = self._database.tables_of(self._spec.tables)
        self._publish(tables.values())
        slot = self._database.slot(self._spec.slot)
        lsn = slot.lsn if slot else self._database.create_slot(self._spec.slot)
        if self._target is not None:
            self._target = max(self._target, lsn)
        position = Position(lsn)
        while (offset := self._with_snapshots(position, tables)) is None:
            logger.info("a snapshot waits for transactions that began before it to end")
        return offset

    def _publish(self, tables: Iterable[Table]) -> None:
        publish(self._database, self._spec.publication, self._spec.publication_mode, list(tables))

    def _new_tables(self, position: Position, now: float) -> dict[str, Table]:
        if now - self._listed < _TABLES_S or now - self._barrier_tried < _BARRIER_PAUSE_S:
            return {}
        self._listed = now
        tables = self._database.tables(self._spec.patterns)
        return {name: table for name, table in tables.items() if name not in position.tables}

    def _with_snapshots(self, position: Position, tables: dict[str, Table]) -> dict[str, Any] | None:
        """The offset of a batch that reads these tables; None if transactions have not ended that must have."""
        self._publish(tables.values())
        if self._spec.snapshot == "never":
            # Changes that were not published are not there; the others are, all of them.
            return position.with_tables(dict.fromkeys(tables)).offset()
        barrier = Barrier(self._database)
        deadline = time.monotonic() + _BARRIER_S
        while not barrier.is_reached(self._database):
            if time.monotonic() > deadline:
                self._barrier_tried = time.monotonic()
                return None
            time.sleep(_BARRIER_POLL_S)
        self._held = HeldSnapshot(self._conninfo)
        seen: Snapshot = self._held.seen
        self._held_for = position.with_tables(dict.fromkeys(tables, seen)).offset()
        self._tables |= tables
        return dict(self._held_for)

    def _further(self, position: Position, start: dict[str, Any], now: float) -> dict[str, Any]:
        flushed = self._database.flushed_lsn() if self._target is None else self._target
        if flushed <= position.lsn:
            return start
        end = min(flushed, position.lsn + self._spec.batch_bytes_max)
        is_due = self._target is not None or now - self._moved >= self._spec.heartbeat_ms / 1000
        is_large = end - position.lsn >= _PROBED_BYTES_MAX
        # Other tables and databases write to the same log: a batch for each of their transactions would be wasteful.
        # But now and then the position moves, or PostgreSQL could not free its log.
        if not is_due and not is_large and not self._has_changes(end):
            return start
        self._moved = now
        return position.at(end).offset()

    def _has_changes(self, end: int) -> bool:
        return self._database.has_changes(self._spec.slot, self._spec.publication, end)

    def _beat(self, now: float) -> None:
        if self._spec.heartbeat_query and now - self._beaten >= self._spec.heartbeat_ms / 1000:
            self._beaten = now
            self._database.ask(self._spec.heartbeat_query)

    def _release(self, start: Mapping[str, Any]) -> None:
        """The batch that read with the snapshot is done."""
        if self._held is not None and self._held_for == start:
            self._held.close()
            self._held = None

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = Position.of(start), Position.of(end)
        assert after is not None
        known = before.tables if before else {}
        new = [name for name in after.tables if name not in known]
        if new and self._spec.snapshot != "never":
            export = self._held.export if self._held is not None and self._held_for == end else None
            missing = [name for name in new if name not in self._tables]
            if missing:  # a batch that is repeated
                self._tables |= self._database.tables(self._spec.patterns)
            # A table that was dropped meanwhile has no rows.
            return [SnapshotPart(self._tables[name], after.lsn, export) for name in new if name in self._tables]
        if before is None or before.lsn == after.lsn:
            return []
        return [ChangesPart(start, after.lsn)]

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        position = Position.of(end)
        if position is not None:
            self._done = position.lsn

    def _advance(self, slot_lsn: int) -> None:
        """Let PostgreSQL free its log. That decodes it once more, hence not with every batch."""
        now = time.monotonic()
        if self._done > slot_lsn and now - self._advanced >= _ADVANCE_S:
            self._advanced = now
            self._database.advance_slot(self._spec.slot, self._done)

    def stop(self) -> None:
        if self._held is not None:
            self._held.close()
        self._database.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SnapshotPart):
            return read_snapshot(partition, self._spec, self._conninfo)
        assert isinstance(partition, ChangesPart)
        return read_changes(partition, self._spec, self._conninfo)


def read_snapshot(part: SnapshotPart, spec: CaptureSpec, conninfo: str) -> Iterator[pa.RecordBatch]:
    def changes() -> Iterator[tuple[int, Change]]:
        shape = spec.shape(part.table)
        with connect(conninfo) as connection:
            for taken, values in snapshot_rows(connection, part.table, part.export):
                size = sum(map(len, filter(None, values)))
                yield size, Change("r", shape, None, shape.row(values), part.lsn, 0, part.lsn, None, taken)

    return _batches(changes(), spec)


def read_changes(part: ChangesPart, spec: CaptureSpec, conninfo: str) -> Iterator[pa.RecordBatch]:
    def primary_key(oid: int) -> list[str]:
        other = Database(conninfo)  # the first is busy with the changes
        tables = other.tables(spec.patterns)
        other.close()
        return [
            column.name for table in tables.values() if table.oid == oid for column in table.columns if column.is_key
        ]

    def changes() -> Iterator[tuple[int, Change]]:
        start = Position.of(part.start)
        assert start is not None
        stream = ChangeStream(start, part.end_lsn, spec.excluded_columns, primary_key)
        database = Database(conninfo)
        try:
            database.slot_position(spec.slot, start.lsn)
            for lsn, message in database.changes(spec.slot, spec.publication, part.end_lsn):
                for change in stream.feed(lsn, message):
                    yield len(message), change
        finally:
            database.close()

    return _batches(changes(), spec)


def _batches(changes: Iterator[tuple[int, Change]], spec: CaptureSpec) -> Iterator[pa.RecordBatch]:
    with plain_errors():
        rows: list[Change] = []
        size = 0
        for length, change in changes:
            rows.append(change)
            size += length
            if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield spec.rows.batch(rows)
                rows, size = [], 0
        if rows:
            yield spec.rows.batch(rows)

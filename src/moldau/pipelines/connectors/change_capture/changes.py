"""Changes of rows: what a stream of pgoutput's messages says about the tables that are captured. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from moldau.errors import RecordFormatError
from moldau.pipelines.connectors.change_capture.pgoutput import (
    UNCHANGED,
    Begin,
    Column,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    Values,
    decode,
)
from moldau.pipelines.connectors.change_capture.positions import Position
from moldau.pipelines.connectors.change_capture.values import type_of


@dataclass(frozen=True, eq=False)  # by identity: a table that was altered has another
class Shape:
    """A table as its rows are delivered."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]  # which columns are its key
    kept: tuple[int, ...] | None = None  # which of the columns that PostgreSQL sends these are; None: all

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @cached_property
    def json_fields(self) -> list[tuple[str, Callable[[str], str], bool]]:
        """Of each column: its name as JSON, how a value becomes JSON, and whether it is of the key."""
        return [
            (json.dumps(column.name) + ":", type_of(column).json, number in self.key)
            for number, column in enumerate(self.columns)
        ]

    @classmethod
    def of(cls, schema: str, table: str, columns: Sequence[Column], excluded: Sequence[re.Pattern[str]]) -> Shape:
        """`excluded` match `schema.table.column`. A key is always delivered."""
        kept = tuple(
            number
            for number, column in enumerate(columns)
            if column.is_key or not any(one.fullmatch(f"{schema}.{table}.{column.name}") for one in excluded)
        )
        left = tuple(columns[number] for number in kept)
        key = tuple(number for number, column in enumerate(left) if column.is_key)
        return cls(schema, table, left, key, None if len(kept) == len(columns) else kept)

    def row(self, values: Values) -> Values:
        return values if self.kept is None else tuple(values[number] for number in self.kept)

    def key_of(self, values: Values) -> Values:
        return tuple(values[number] for number in self.key)


@dataclass(frozen=True, slots=True)
class Change:
    op: str  # c, u, d, r (read by a snapshot), t (truncate)
    shape: Shape
    before: Values | None
    after: Values | None  # may have UNCHANGED
    commit_lsn: int
    sequence: int  # of the change in its transaction
    lsn: int  # of the change itself
    xid: int | None
    committed: datetime

    @property
    def row(self) -> Values | None:
        """The row that it is about."""
        return self.before if self.after is None else self.after


class ChangeStream:
    """The changes between two positions, from messages that may begin before the first."""

    def __init__(
        self,
        start: Position,
        end_lsn: int,
        excluded: Sequence[re.Pattern[str]] = (),
        primary_key: Callable[[int], Sequence[str]] = lambda _: (),
    ) -> None:
        """`primary_key` is asked for tables whose replica identity is the whole row, by object id."""
        self._start, self._end_lsn = start, end_lsn
        self._excluded, self._primary_key = excluded, primary_key
        self._shapes: dict[int, Shape] = {}
        self._wanted: dict[int, bool] = {}  # tables of the transaction
        self._transaction = Begin(0, datetime.min, 0)
        self._is_skipped = True
        self._sequence = 0

    def feed(self, lsn: int, message: bytes) -> Iterator[Change]:
        # Of transactions that are skipped: where the next begins, and what tables look like.
        if self._is_skipped and message[:1] not in (b"B", b"R"):
            return
        match event := decode(message):
            case Begin():
                self._transaction, self._sequence = event, 0
                self._wanted.clear()
                self._is_skipped = not self._start.lsn <= event.commit_lsn < self._end_lsn
            case Relation():
                self._shapes[event.oid] = self._shape(event)
                self._wanted.pop(event.oid, None)
            case Insert() | Update() | Delete():
                if self._wants(event.relation):
                    yield from self._row_changes(event, lsn)
            case Truncate():
                for relation in filter(self._wants, event.relations):
                    yield self._change("t", relation, None, None, lsn)

    def _shape(self, relation: Relation) -> Shape:
        columns: Sequence[Column] = relation.columns
        if relation.replica_identity == "f":
            key = self._primary_key(relation.oid)
            columns = [replace(column, is_key=column.name in key) for column in columns]
        return Shape.of(relation.schema, relation.table, columns, self._excluded)

    def _wants(self, relation: int) -> bool:
        wanted = self._wanted.get(relation)
        if wanted is None:
            if relation not in self._shapes:
                raise RecordFormatError(f"pgoutput: a change of a table ({relation}) that was not described before")
            name, begin = self._shapes[relation].full_name, self._transaction
            wanted = self._wanted[relation] = self._start.wants(name, begin.xid, begin.commit_lsn)
        return wanted

    def _row_changes(self, event: Insert | Update | Delete, lsn: int) -> Iterator[Change]:
        shape = self._shapes[event.relation]
        before = after = None
        if not isinstance(event, Insert) and event.before is not None:
            before = shape.row(event.before)
        if not isinstance(event, Delete):
            after = shape.row(event.after)
        if isinstance(event, Update) and before is not None and after is not None:
            if not event.is_key_only:  # the whole row was sent: nothing is unknown
                after = tuple(old if new is UNCHANGED else new for old, new in zip(before, after, strict=True))
            if shape.key_of(before) != shape.key_of(after):
                # Another key is another row: whoever keeps rows by key has to delete the one before.
                yield self._change("d", event.relation, before, None, lsn)
                yield self._change("c", event.relation, None, after, lsn)
                return
        op = "c" if isinstance(event, Insert) else "u" if isinstance(event, Update) else "d"
        yield self._change(op, event.relation, before, after, lsn)

    def _change(self, op: str, relation: int, before: Values | None, after: Values | None, lsn: int) -> Change:
        begin, sequence = self._transaction, self._sequence
        self._sequence += 1
        shape = self._shapes[relation]
        return Change(op, shape, before, after, begin.commit_lsn, sequence, lsn, begin.xid, begin.committed)

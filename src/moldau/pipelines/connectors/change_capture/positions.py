"""Where a query is: a position in PostgreSQL's write-ahead log, and which tables have had their snapshot. No I/O.

The offset of a micro-batch, in Spark's checkpoint:

    {"lsn": "0/1A2B3C", "snapshot": {"public.orders": {"xids": "754:760:755", "until": "0/1A2C00"}, "public.users": {}}}

`lsn` is exclusive: all transactions whose commit record begins before it have been read. A table that is new in an
offset is read as a whole in that batch. `xids` are the transactions that its snapshot saw, in the form of
`pg_current_snapshot()`: their changes are in it already, and are left out of what follows. They all committed before
`until`; when the query has read until there, both are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_XID_BITS = 32


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


@dataclass(frozen=True)
class Snapshot:
    """What a snapshot of a table saw."""

    xids: str  # xmin:xmax:running,running
    until: int

    def has(self, xid: int, commit_lsn: int) -> bool:
        """Whether a committed transaction is in the snapshot. `xid` has 32 bits, as pgoutput sends it."""
        if commit_lsn >= self.until:
            return False
        xmin, xmax, running = self.xids.split(":")
        # Transactions between here and `until` are recent: the nearest with these 32 bits is the right one.
        full = _nearest(xid, int(xmax))
        return full < int(xmin) or (full < int(xmax) and str(full) not in running.split(","))


def _nearest(xid: int, near: int) -> int:
    """The 64-bit transaction id with these lower 32 bits that is closest to another."""
    difference = (xid - near) & ((1 << _XID_BITS) - 1)
    return near + difference - ((1 << _XID_BITS) if difference >> (_XID_BITS - 1) else 0)


@dataclass(frozen=True)
class Position:
    lsn: int
    tables: Mapping[str, Snapshot | None] = field(default_factory=dict)  # None: nothing to leave out

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Position | None:
        """None: a new query, which has read nothing."""
        if not offset:
            return None
        tables = {
            name: Snapshot(state["xids"], lsn_of(state["until"])) if state else None
            for name, state in offset["snapshot"].items()
        }
        return cls(lsn_of(offset["lsn"]), tables)

    def offset(self) -> dict[str, Any]:
        tables = {
            name: {"xids": seen.xids, "until": lsn_text(seen.until)} if seen else {}
            for name, seen in sorted(self.tables.items())
        }
        return {"lsn": lsn_text(self.lsn), "snapshot": tables}

    def at(self, lsn: int) -> Position:
        """Further on; what is no longer needed is dropped."""
        left = {name: seen if seen and seen.until > lsn else None for name, seen in self.tables.items()}
        return Position(lsn, left)

    def with_tables(self, tables: Mapping[str, Snapshot | None]) -> Position:
        return replace(self, tables={**self.tables, **tables})

    def wants(self, table: str, xid: int, commit_lsn: int) -> bool:
        """Whether a change of this table belongs to the stream."""
        if table not in self.tables:
            return False  # it is in the snapshot that is still to come
        seen = self.tables[table]
        return seen is None or not seen.has(xid, commit_lsn)

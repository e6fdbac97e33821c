"""Change capture without a database: positions, the changes of a stream of messages, and the rows made of them."""

from __future__ import annotations

import json
import re
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import ConfigError, RecordFormatError
from moldau.pipelines.connectors.change_capture.changes import Change, ChangeStream
from moldau.pipelines.connectors.change_capture.connector import ChangeCaptureConnector, slot_name
from moldau.pipelines.connectors.change_capture.database import conninfo_of
from moldau.pipelines.connectors.change_capture.forms import JsonForm
from moldau.pipelines.connectors.change_capture.positions import Position, Snapshot, lsn_of, lsn_text
from moldau.pipelines.model.options import Given

_TABLE = 7


def _begin(lsn: int, xid: int = 750) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, 0, xid)


def _relation(*columns: tuple[str, int, int], identity: bytes = b"d", name: bytes = b"orders") -> bytes:
    head = b"R" + struct.pack(">I", _TABLE) + b"public\0" + name + b"\0" + identity + struct.pack(">H", len(columns))
    return head + b"".join(
        bytes([is_key]) + column.encode() + b"\0" + struct.pack(">Ii", oid, -1) for column, oid, is_key in columns
    )


def _row(*values: str | None) -> bytes:
    fields = [b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value.encode() for value in values]
    return struct.pack(">H", len(values)) + b"".join(fields)


_COLUMNS = (("id", 23, 1), ("name", 25, 0))
_RELATION = _relation(*_COLUMNS)
_OID = struct.pack(">I", _TABLE)


def _insert(*values: str | None) -> bytes:
    return b"I" + _OID + b"N" + _row(*values)


_COMMIT = b"C\0" + struct.pack(">QQq", 0, 0, 0)
_DONE = Position(100, {"public.orders": None})


def _changes(stream: ChangeStream, *messages: bytes) -> list[Change]:
    return [change for message in messages for change in stream.feed(1, message)]


@given(st.integers(0, 2**64 - 1))
def test_positions_are_printed_and_read_as_postgresql_does(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn


def test_an_offset_survives_the_checkpoint() -> None:
    position = Position(0x1A2B, {"public.a": Snapshot("754:760:755", 0x1A30), "public.b": None})
    assert Position.of(json.loads(json.dumps(position.offset()))) == position
    assert Position.of({}) is None


def test_what_a_snapshot_saw_is_dropped_when_the_query_has_passed_it() -> None:
    position = Position(10, {"public.a": Snapshot("5:5:", 30)})
    assert position.at(29).tables["public.a"] is not None
    assert position.at(30).tables == {"public.a": None}


@pytest.mark.parametrize(
    ("xid", "commit_lsn", "is_seen"),
    [
        (753, 10, True),  # before all that ran
        (755, 10, False),  # ran when the snapshot was taken
        (757, 10, True),
        (760, 10, False),  # came later
        (753, 30, False),  # the id is that of a much later transaction: ids are used again
    ],
)
def test_a_snapshot_knows_which_transactions_it_saw(xid: int, commit_lsn: int, is_seen: bool) -> None:
    assert Snapshot("754:760:755,758", 30).has(xid, commit_lsn) is is_seen


def test_transaction_ids_of_32_bits_are_understood_after_they_have_wrapped() -> None:
    base = 3 << 32
    snapshot = Snapshot(f"{base + 2}:{base + 9}:{base + 4}", 30)
    assert snapshot.has(0xFFFFFFFF, 10)  # just before the wrap
    assert snapshot.has(3, 10)
    assert not snapshot.has(4, 10)
    assert not snapshot.has(9, 10)


def test_only_transactions_that_commit_between_the_positions_are_delivered() -> None:
    stream = ChangeStream(_DONE, end_lsn=200)
    messages = [_RELATION]
    for lsn in (99, 100, 199, 200):
        messages += [_begin(lsn), _insert(str(lsn), None), _COMMIT]
    assert [change.after for change in _changes(stream, *messages)] == [("100", None), ("199", None)]


def test_changes_that_a_snapshot_has_seen_are_left_out() -> None:
    start = Position(100, {"public.orders": Snapshot("754:760:", 150)})
    stream = ChangeStream(start, end_lsn=200)
    seen = (_begin(110, 753), _insert("1", "seen"), _COMMIT)
    unseen = (_begin(120, 760), _insert("2", "unseen"), _COMMIT)
    assert [change.after for change in _changes(stream, _RELATION, *seen, *unseen)] == [("2", "unseen")]


def test_changes_of_a_table_wait_for_its_snapshot() -> None:
    stream = ChangeStream(Position(100, {"public.other": None}), end_lsn=200)
    assert _changes(stream, _RELATION, _begin(110), _insert("1", "x"), _COMMIT) == []


def test_changes_of_a_transaction_are_numbered_in_their_order() -> None:
    stream = ChangeStream(_DONE, end_lsn=200)
    update = b"U" + _OID + b"N" + _row("1", "b")
    delete = b"D" + _OID + b"K" + _row("1", None)
    truncate = b"T" + struct.pack(">IBI", 1, 0, _TABLE)
    changes = _changes(stream, _RELATION, _begin(110), _insert("1", "a"), update, delete, truncate, _COMMIT)
    assert [(change.op, change.sequence) for change in changes] == [("c", 0), ("u", 1), ("d", 2), ("t", 3)]


def test_a_row_with_another_key_is_deleted_under_its_old_one() -> None:
    stream = ChangeStream(_DONE, end_lsn=200)
    update = b"U" + _OID + b"K" + _row("1", None) + b"N" + _row("2", "a")
    changes = _changes(stream, _RELATION, _begin(110), update, _COMMIT)
    assert [(change.op, change.row) for change in changes] == [("d", ("1", None)), ("c", ("2", "a"))]


def test_a_large_value_that_did_not_change_is_taken_from_the_row_before_if_that_was_sent() -> None:
    stream = ChangeStream(_DONE, end_lsn=200, primary_key=lambda oid: ["id"] if oid == _TABLE else [])
    full = _relation(("id", 23, 1), ("name", 25, 1), identity=b"f")
    update = b"U" + _OID + b"O" + _row("1", "large") + b"N" + struct.pack(">H", 2) + b"t\0\0\0\x011u"
    (change,) = _changes(stream, full, _begin(110), update, _COMMIT)
    assert (change.op, change.after, change.shape.key) == ("u", ("1", "large"), (0,))


def test_a_large_value_that_is_not_known_is_left_out_and_named() -> None:
    stream = ChangeStream(_DONE, end_lsn=200)
    update = b"U" + _OID + b"N" + struct.pack(">H", 2) + b"t\0\0\0\x011u"
    (row,) = JsonForm().batch(_changes(stream, _RELATION, _begin(110), update)).to_pylist()
    assert (row["after"], row["unchanged"]) == ('{"id":1}', ["name"])


def test_excluded_columns_do_not_come_but_keys_do() -> None:
    stream = ChangeStream(_DONE, end_lsn=200, excluded=[re.compile(r"public\.orders\.(id|name)")])
    (row,) = JsonForm().batch(_changes(stream, _RELATION, _begin(110), _insert("1", "x"))).to_pylist()
    assert (row["key"], row["after"]) == ('{"id":1}', '{"id":1}')


def test_a_change_of_an_undescribed_table_is_an_error() -> None:
    with pytest.raises(RecordFormatError, match="not described"):
        _changes(ChangeStream(_DONE, end_lsn=200), _begin(110), _insert("1", "x"))


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (16, "t", True),
        (17, "\\x00ff", "AP8="),
        (20, "-9223372036854775808", -(2**63)),
        (701, "NaN", "NaN"),
        (1700, "12345678901234567890.10", Decimal("12345678901234567890.10")),
        (1082, "2026-11-18", "2026-11-18"),
        (1114, "2026-11-18 01:02:03.4", "2026-11-18T01:02:03.4"),
        (1184, "2026-11-18 01:02:03.4+00", "2026-11-18T01:02:03.4Z"),
        (3802, '{"a": [1]}', {"a": [1]}),
        (25, 'a "quoted" é\n', 'a "quoted" é\n'),
        (1007, "{1,2}", "{1,2}"),
    ],
)
def test_values_are_json_of_their_kind(oid: int, text: str, value: object) -> None:
    stream = ChangeStream(_DONE, end_lsn=200)
    relation = _relation(("id", 23, 1), ("v", oid, 0))
    insert = b"I" + _OID + b"N" + _row("1", None)[:-1] + b"t" + struct.pack(">I", len(text.encode())) + text.encode()
    (row,) = JsonForm().batch(_changes(stream, relation, _begin(110), insert)).to_pylist()
    assert json.loads(row["after"], parse_float=Decimal if oid == 1700 else None)["v"] == value


def test_names_of_slots_are_names_that_postgresql_takes_and_differ() -> None:
    assert slot_name("moldau", "shop", "orders") == "moldau_shop_orders"
    names = {slot_name("moldau", text) for text in ("a-b", "a_b", "A_B", "x" * 100, "x" * 101)}
    assert len(names) == 5
    assert all(re.fullmatch("[a-z0-9_]{1,63}", name) for name in names)


def test_a_schema_is_for_one_table() -> None:
    options = {"schema": Given("id INT"), "tables": Given(["a", "b"])}
    (problem,) = ChangeCaptureConnector().check(options, is_source=True)
    assert "one table" in problem.message
    assert not list(ChangeCaptureConnector().check({**options, "tables": Given("public.a")}, is_source=True))


def test_a_url_that_is_none_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="expected a URL of PostgreSQL") as refusal:
        conninfo_of("mysql://db/secret", None, None)
    assert "secret" not in str(refusal.value)
    assert conninfo_of("postgresql://db/shop", None, "p w").count("'p w'") == 1

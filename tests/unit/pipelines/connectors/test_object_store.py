"""Objects of a store: folders, names, contents, and which ones are new. Without Spark."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import reader as avro_reader

from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.connectors.object_store import listing, stores
from moldau.pipelines.connectors.object_store.encoders import Encoding
from moldau.pipelines.connectors.object_store.formats import extension
from moldau.pipelines.connectors.object_store.layout import (
    Field,
    Layout,
    Text,
    object_name,
    parse_path_format,
)
from moldau.pipelines.connectors.object_store.listing import Found, listed, next_offset
from moldau.pipelines.connectors.object_store.source import LINES, Objects, Part, SourceSpec
from moldau.pipelines.connectors.object_store.stores import Store, put
from moldau.pipelines.connectors.object_store.writer import ObjectSink, ObjectTask
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.model.options import Given

ROWS = pa.record_batch({"n": [1, 2, 3], "word": ["a", None, "č"]})
AVRO = json.dumps(
    {
        "type": "record",
        "name": "row",
        "fields": [{"name": "n", "type": "long"}, {"name": "word", "type": ["null", "string"]}],
    }
)


def test_a_path_format_is_text_in_quotes_and_fields_of_the_time() -> None:
    assert parse_path_format("'year'=YYYY/'at'-MM/dd'h'HH") == (
        Text("year"),
        Text("="),
        Field("Y", 4),
        Text("/"),
        Text("at"),
        Text("-"),
        Field("M", 2),
        Text("/"),
        Field("d", 2),
        Text("h"),
        Field("H", 2),
    )


def test_two_quotes_are_a_quote() -> None:
    assert parse_path_format("'o''clock'") == (Text("o'clock"),)
    assert parse_path_format("''") == (Text("'"),)


@pytest.mark.parametrize(("pattern", "reason"), [("MMM", "'MMM' in a path"), ("EEE", "'EEE'"), ("'year", "no end")])
def test_a_path_format_that_has_no_number_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_path_format(pattern)


def test_objects_are_called_as_kafka_connect_calls_them() -> None:
    assert object_name("clicks", 3, 42) + extension("json", "gzip") == "clicks+3+0000000042.json.gz"
    assert extension("parquet", "snappy") == ".snappy.parquet"
    assert extension("avro", "deflate") == ".avro"
    assert extension("bytes", "none") == ".bin"


def encoded(encoding: Encoding, *batches: pa.RecordBatch) -> bytes:
    encoder = encoding.start("clicks+0+0000000000")
    for batch in batches:
        encoder.add(batch)
    with encoder.finish() as content:
        content.seek(0)
        return content.read()


def lines(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def test_each_format_has_all_rows() -> None:
    rows = ROWS.to_pylist()
    assert pq.read_table(io.BytesIO(encoded(Encoding("parquet", "snappy"), ROWS, ROWS))).to_pylist() == rows * 2
    for codec in ("none", "deflate", "bzip2"):
        content = encoded(Encoding("avro", codec, avro_schema=AVRO), ROWS, ROWS)
        assert list(avro_reader(io.BytesIO(content))) == rows * 2
    assert encoded(Encoding("json", "none"), lines(b"1", b"2"), lines(b"3")) == b"1\n2\n3\n"
    assert gzip.decompress(encoded(Encoding("text", "gzip"), lines(b"a", b""))) == b"a\n\n"
    assert encoded(Encoding("bytes", "none", b"|"), lines(b"a", b"b")) == b"a|b|"


@pytest.mark.parametrize("format_name", ["json", "parquet", "avro"])
def test_the_same_rows_give_the_same_bytes(format_name: str) -> None:
    encoding = Encoding(format_name, "deflate" if format_name == "avro" else "gzip", avro_schema=AVRO)
    rows = lines(b"1") if format_name == "json" else ROWS
    assert encoded(encoding, rows) == encoded(encoding, rows)


def placed(places: Iterable[tuple[str, int, int]]) -> pa.RecordBatch:
    """Rows of (folder, partition, offset)."""
    folders, partitions, offsets = zip(*places, strict=True)
    return pa.record_batch(
        {
            "__moldau_folder": pa.array(folders),
            "__moldau_topic": pa.array(["t"] * len(folders)),
            "__moldau_partition": pa.array(partitions, pa.int32()),
            "__moldau_offset": pa.array(offsets, pa.int64()),
            "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
        }
    )


def written(folder: Path, batches: list[pa.RecordBatch], rows_max: int, bytes_max: int | None = None) -> dict[str, str]:
    sink = ObjectSink(
        Store(str(folder)), "out", Layout(has_offsets=True), Encoding("text", "none"), rows_max, bytes_max, 1
    )
    told = [row for batch in ObjectTask(sink).write(iter(batches)) for row in batch.to_pylist()]
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert {row["object"]: row["rows"] for row in told} == {name: text.count("\n") for name, text in found.items()}
    return found


def test_an_object_ends_after_so_many_rows_or_where_its_place_ends(tmp_path: Path) -> None:
    batches = [
        placed([("a", 0, 0), ("a", 0, 1), ("a", 0, 2), ("a", 0, 5)]),
        placed([("a", 0, 6), ("a", 1, 6), ("b", 1, 7)]),
    ]
    assert written(tmp_path, batches, rows_max=2) == {
        "a/t+0+0000000000.txt": "0\n1\n",
        "a/t+0+0000000002.txt": "2\n5\n",
        "a/t+0+0000000006.txt": "6\n",
        "a/t+1+0000000006.txt": "6\n",
        "b/t+1+0000000007.txt": "7\n",
    }


def test_rows_of_one_offset_stay_in_one_object_since_the_next_would_have_its_name(tmp_path: Path) -> None:
    batches = [placed([("a", 0, 1), ("a", 0, 1)]), placed([("a", 0, 1), ("a", 0, 2)])]
    assert written(tmp_path, batches, rows_max=1) == {
        "a/t+0+0000000001.txt": "1\n1\n1\n",
        "a/t+0+0000000002.txt": "2\n",
    }


def test_an_object_ends_when_it_is_large(tmp_path: Path) -> None:
    names = written(tmp_path, [placed([("a", 0, n) for n in range(3_000)])], rows_max=10_000, bytes_max=1)
    assert sorted(names) == [f"a/t+0+{n:010d}.txt" for n in (0, 1_000, 2_000)]


def put_bytes(store: Store, name: str, content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        put(store, name, file)


def test_an_object_appears_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    put_bytes(store, "a/one", b"before")

    def write_half(files: Any, path: str, content: bytes) -> None:
        Path(path).write_bytes(content[:2])
        raise OSError("the disk is gone")

    monkeypatch.setattr(stores, "_write", write_half)
    with pytest.raises(MoldauError, match="the disk is gone"):
        put_bytes(store, "a/one", b"after")
    assert (tmp_path / "a/one").read_bytes() == b"before"
    assert [found.name for found in listed(store)] == ["a/one"]


def test_new_objects_are_read_once_oldest_first_whatever_their_names() -> None:
    found = [Found("b", 1, 1_000), Found("a", 2, 2_000), Found("c", 3, 2_000)]
    first = next_offset({}, found, 2, 60_000)
    assert first["objects"] == [["b", 1], ["a", 2]]
    second = next_offset(first, found, 2, 60_000)
    assert second["objects"] == [["c", 3]]
    assert next_offset(second, found, 2, 60_000) is second
    late = next_offset(second, [*found, Found("0", 4, 1_500)], 2, 60_000)
    assert late["objects"] == [["0", 4]]


def test_an_offset_remembers_only_what_may_come_again() -> None:
    offset: Any = {}
    found: list[Found] = []
    for second in range(100):
        found.append(Found(str(second), 1, second * 1_000))
        offset = next_offset(offset, found, 10, 10_000)
        assert offset["objects"] == [[str(second), 1]]
        assert len(offset["seen"]) <= 10
    assert next_offset(offset, found, 10, 10_000) is offset


def test_more_objects_than_can_be_remembered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_SEEN_MAX", 2)
    with pytest.raises(ConfigError, match="3 objects came within `late after`"):
        next_offset({}, [Found(str(n), 1, 1) for n in range(3)], 10, 60_000)


def test_an_object_that_changed_after_it_was_listed_is_an_error(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    put_bytes(store, "one", b"123456\n")
    objects = Objects(store, SourceSpec("text", 1, 1, 1))
    assert [len(batch) for batch in objects.read(Part([("one", 7)]), LINES)] == [1]
    with pytest.raises(MoldauError, match="one had 8 bytes when it was listed, and has 7 bytes now"):
        list(objects.read(Part([("one", 8)]), LINES))
    with pytest.raises(MoldauError, match="two had 8 bytes when it was listed, and is gone"):
        list(objects.read(Part([("two", 8)]), LINES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"access key": "x"}, "access key and secret key belong together"),
        ({"url": "ftp://x"}, "expected s3://"),
        ({"format": "avro", "compression": "gzip"}, "avro has none, deflate, bzip2"),
        ({"flush bytes": 5}, "needs `names: offsets`"),
        ({"path format": "EEE"}, "'EEE' in a path format"),
        ({"time zone": "Mars/Olympus"}, "unknown time zone Mars/Olympus"),
    ],
)
def test_lint_says_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    found = connector("s3")
    given = {name: Given(value) for name, value in ({"url": "s3://b/p"} | options).items()}
    assert found.sink_options is not None
    problems = [*found.sink_options.check(given, "sink out", None), *found.check(given, is_source=False)]
    assert len(problems) == 1
    assert message in problems[0].message


def test_a_store_never_shows_its_keys() -> None:
    assert "hidden" not in repr(Store("s3://b", access_key="hidden-1", secret_key="hidden-2"))

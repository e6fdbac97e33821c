"""What is in a file of a log directory, as rows for `kafka-dump-log`: ours and Apache Kafka's, read only.

A row is a kind and fields in the order in which Kafka prints them. Files that a broker is writing to can be
read too: a tail that is not whole yet is told, never guessed at.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from moldau.disk import OS_DISK
from moldau.errors import CommandError, CorruptFileError, KafkaError
from moldau.wire.batch import (
    BatchHeader,
    ControlType,
    Record,
    check_batch,
    decode_control_record,
    decode_records,
    iter_headers,
    read_header,
)
from moldau.wire.batch_layout import HEADER_SIZE, MAGIC

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_CONTROL_TYPES = {2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION",
                  6: "KRAFT_VOTERS"}  # fmt: skip

Decoder = Callable[[bytes], str]


class Row(NamedTuple):
    kind: str  # what it tells: batch, record, entry; note; or something wrong with the file
    fields: dict[str, Any]


class Options(NamedTuple):
    deep: bool = False  # records, not only batches
    contents: bool = False  # keys and values too
    metadata: bool = True  # offset, sizes and the like of each record
    max_bytes: int = 2**31 - 1
    key_decoder: Decoder | None = None
    value_decoder: Decoder | None = None
    state_topic: str | None = None  # keys and values are records of this one of Kafka's own topics


def note(text: str) -> Row:
    return Row("note", {"text": text})


def problem(text: str) -> Row:
    return Row("problem", {"text": text})


def _contents(path: Path) -> bytes | mmap.mmap:
    """A file's bytes; mapped, because segments are a gigabyte by default."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def log_rows(path: Path, options: Options) -> Iterator[Row]:
    """Batches of a segment (or of a KRaft snapshot, which is laid out the same)."""
    data = memoryview(_contents(path))[: options.max_bytes]
    valid_bytes = 0
    previous: int | None = None
    for position, header in iter_headers(data):
        if header.magic != MAGIC:
            yield problem(f"magic {header.magic} at position {position}: the format before Kafka 0.11 is not supported")
            return
        is_valid = _is_valid(data, position, header)
        yield Row("batch", _batch_fields(header, position, is_valid))
        if not is_valid:
            yield problem(f"batch at position {position} of {path.name} fails its CRC")
        elif options.deep:
            for record in _records(data, position, header):
                if previous is not None and record.offset != previous + 1:
                    yield Row("gap", {"file": str(path), "first": previous, "second": record.offset})
                previous = record.offset
                yield Row("record", _record_fields(header, record, options))
        valid_bytes = position + header.size
    if valid_bytes < len(data) and options.max_bytes == Options().max_bytes:
        yield note(f"Found {len(data) - valid_bytes} invalid bytes at the end of {path.name}")


def _is_valid(data: memoryview, position: int, header: BatchHeader) -> bool:
    try:
        check_batch(data, position, header, strict=False)
    except KafkaError:
        return False
    return True


def _records(data: memoryview, position: int, header: BatchHeader) -> list[Record]:
    try:
        return decode_records(data, position, header)
    except KafkaError as error:
        raise CommandError(f"batch at position {position}: {error}") from error


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.is_log_append_time else "CreateTime"


def _batch_fields(header: BatchHeader, position: int, is_valid: bool) -> dict[str, Any]:
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
        "position": position,
        _timestamp_type(header): header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": header.codec.name.lower(),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def _record_fields(header: BatchHeader, record: Record, options: Options) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if options.metadata:
        sequence = -1
        if header.base_sequence >= 0:
            sequence = (header.base_sequence + record.offset - header.base_offset) & 0x7FFF_FFFF
        fields = {
            "offset": record.offset,
            _timestamp_type(header): record.timestamp_ms,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": sequence,
            "headerKeys": [_printable(name) for name, _ in record.headers],
        }
        if header.is_control:
            fields |= _control_fields(record)
    if options.contents and not header.is_control:
        if options.state_topic is not None:
            return fields | _state_fields(record, options.state_topic)
        if record.key is not None:
            fields["key"] = _decode(record.key, options.key_decoder)
        if record.value is not None:
            fields["payload"] = _decode(record.value, options.value_decoder)
    return fields


def _state_fields(record: Record, topic: str) -> dict[str, Any]:
    from moldau.cli.records.state_json import compact, reader

    if record.key is None:
        raise CommandError(f"message at offset {record.offset} has no key: it is not a record of {topic}")
    try:
        state = reader(topic)(record.key, record.value)
    except KafkaError as error:
        return {"key": f"Error at offset {record.offset}, skipping. {error}"}
    if state is None:
        return {"key": f"Unknown record type at offset {record.offset}, skipping."}
    value = "<DELETE>"
    if state.value is not None:
        value = compact({"version": str(state.version), "data": state.value})
    return {"key": compact({"type": str(state.kind), "data": state.key}), "payload": value}


def _control_fields(record: Record) -> dict[str, Any]:
    control = decode_control_record(record)
    if control.type in (ControlType.ABORT, ControlType.COMMIT):
        name = ControlType(control.type).name
        return {"endTxnMarker": name, "coordinatorEpoch": control.coordinator_epoch}
    return {"controlType": f"{_CONTROL_TYPES.get(control.type, 'UNKNOWN')}({control.type})"}


def _printable(name: str) -> str:
    """A header's name need not be UTF-8 in the file, but has to be on the screen."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _decode(data: bytes, decoder: Decoder | None) -> str:
    if decoder is None:
        return data.decode(errors="replace")
    try:
        return decoder(data)
    except (struct.error, ValueError) as error:
        raise CommandError(f"cannot decode {data[:40]!r}: {error}") from error


def offset_index_rows(path: Path) -> Iterator[Row]:
    """Entries of an `.index`, each checked against the batch it points to."""
    data = memoryview(_contents(path.with_suffix(".log")))
    for offset, position in _offset_entries(path):
        found = read_header(data, position).last_offset if position + HEADER_SIZE <= len(data) else -1
        yield Row("entry", {"offset": offset, "position": position})
        if found != offset:
            yield Row("mismatch", {"file": str(path), "index offset": offset, "log offset": found})


def _offset_entries(path: Path) -> list[tuple[int, int]]:
    base = base_offset(path)
    entries = _entries(path, _INDEX_ENTRY)
    return [(base + relative, position) for relative, position in entries]


def _entries(path: Path, layout: struct.Struct) -> list[tuple[int, int]]:
    """Whole entries up to the zeros that a broker preallocates an active index with."""
    from moldau.log.segments.offset_index import trim_zeros

    data = trim_zeros(bytes(_contents(path)), layout.size)
    return list(layout.iter_unpack(data[: len(data) // layout.size * layout.size]))


def time_index_rows(path: Path) -> Iterator[Row]:
    """Entries of a `.timeindex`, each checked against the batch that ends at its offset."""
    base = base_offset(path)
    data = memoryview(_contents(path.with_suffix(".log")))
    positions = _offset_entries(path.with_suffix(".index")) if path.with_suffix(".index").exists() else []
    previous = -1
    for timestamp, relative in _entries(path, _TIME_ENTRY):
        offset = base + relative
        start = max((position for at, position in positions if at <= offset), default=0)
        batch = next((h for _, h in iter_headers(data[start:]) if h.last_offset >= offset), None)
        yield Row("entry", {"timestamp": timestamp, "offset": offset})
        if batch is None or batch.last_offset != offset:
            found = -1 if batch is None else batch.last_offset
            yield Row("not found", {"indexed offset": offset, "found log offset": found})
        elif batch.max_timestamp != timestamp:
            fields = {"index timestamp": timestamp, "log timestamp": batch.max_timestamp}
            yield Row("time mismatch", {"file": str(path), **fields})
        if timestamp <= previous:
            fields = {"index timestamp": timestamp, "previously indexed timestamp": previous}
            yield Row("out of order", {"file": str(path), **fields})
        previous = timestamp


def index_sanity_rows(path: Path) -> Iterator[Row]:
    """The check a broker makes when it starts, to decide whether an index must be built again."""
    from moldau.log.segments.offset_index import OffsetIndex
    from moldau.log.segments.time_index import TimeIndex

    try:
        if path.suffix == ".index":
            OffsetIndex(OS_DISK, str(path), base_offset(path)).load(path.with_suffix(".log").stat().st_size)
        else:
            TimeIndex(OS_DISK, str(path), base_offset(path)).load()
    except (CorruptFileError, OSError) as error:
        yield problem(str(error))
    else:
        yield note(f"{path} passed sanity check.")


def txn_index_rows(path: Path) -> Iterator[Row]:
    from moldau.log.segments.txn_index import VERSION, TxnIndex

    try:
        for txn in TxnIndex(OS_DISK, str(path), base_offset(path), exists=True).entries():
            fields = {
                "version": VERSION,
                "producerId": txn.producer_id,
                "firstOffset": txn.first_offset,
                "lastOffset": txn.last_offset,
                "lastStableOffset": txn.last_stable_offset,
            }
            yield Row("entry", fields)
    except (CorruptFileError, OSError) as error:
        yield problem(str(error))


def producer_snapshot_rows(path: Path) -> Iterator[Row]:
    from moldau.log.producer_state import decode_snapshot

    try:
        producers = decode_snapshot(bytes(_contents(path)))
    except CorruptFileError as error:
        yield problem(f"{path}: {error}")
        return
    for producer in producers:
        fields = {
            "producerId": producer.producer_id,
            "producerEpoch": producer.epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": None if producer.txn_first_offset < 0 else producer.txn_first_offset,
            "lastTimestamp": producer.last_timestamp_ms,
        }
        if producer.batches:
            batch = producer.batches[-1]
            fields |= {
                "firstSequence": batch.first_sequence,
                "lastSequence": batch.last_sequence,
                "lastOffset": batch.last_offset,
                "offsetDelta": batch.offset_delta,
                "timestamp": batch.timestamp_ms,
            }
        yield Row("entry", fields)


def checkpoint_rows(path: Path) -> Iterator[Row]:
    """`leader-epoch-checkpoint` and the offset checkpoints; Kafka's own tool does not read these."""
    from moldau.log.checkpoints import LEADER_EPOCH, read_checkpoint

    names = ("epoch", "startOffset") if path.name == LEADER_EPOCH else ("topic", "partition", "offset")
    if not path.exists():
        raise CommandError(f"cannot read {path}: No such file or directory")
    try:
        for words in read_checkpoint(OS_DISK, path, fields=len(names)):
            yield Row("entry", dict(zip(names, words, strict=True)))
    except CorruptFileError as error:
        yield problem(str(error))


def base_offset(path: Path) -> int:
    """Segment files are named after the first offset they may hold."""
    name = path.name.partition(".")[0]
    if not name.isdigit():
        raise CommandError(f"{path} is not named after an offset, for example 00000000000000000000{path.suffix}")
    return int(name)

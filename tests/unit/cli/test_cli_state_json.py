"""Records of Kafka's own topics in the JSON that Kafka 4's formatters and log dumper write of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.cli.records import dump_log
from moldau.cli.records.formatters import build_formatter
from moldau.coordinators.classic.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from moldau.coordinators.offsets.records import OffsetCommitKey, OffsetCommitValue
from moldau.coordinators.transactions.records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from moldau.errors import ConfigError, RecordFormatError
from moldau.wire.batch import encode_batch
from moldau.wire.state_records import encode_key, encode_value

COMMIT_KEY = encode_key(OffsetCommitKey("billing", "orders", 3))
COMMIT = encode_value(
    OffsetCommitValue(offset=42, leader_epoch=-1, metadata="", commit_timestamp=1000, topic_id=UUID(int=1))
)
OFFSETS = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"


class Message:
    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return 7


def _formatted(name: str, key: bytes | None, value: bytes | None) -> Any:
    line = build_formatter(name, {})(Message(key, value))
    return json.loads(line) if line else None


def test_committed_offsets_are_written_as_kafka_does() -> None:
    assert build_formatter(OFFSETS, {})(Message(COMMIT_KEY, COMMIT)) == (
        b'{"key":{"type":1,"data":{"group":"billing","topic":"orders","partition":3}},'
        b'"value":{"version":4,"data":{"offset":42,"leaderEpoch":-1,"metadata":"","commitTimestamp":1000,'
        b'"topicId":"AAAAAAAAAAAAAAAAAAAAAQ"}}}\n'
    )


def test_a_tombstone_has_no_value() -> None:
    assert _formatted(OFFSETS, COMMIT_KEY, None)["value"] is None


def test_each_formatter_prints_its_own_kinds_only() -> None:
    key = encode_key(GroupMetadataKey("billing"))
    member = MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=1, subscription=b"\0\1", assignment=b""
    )
    value = encode_value(
        GroupMetadataValue(protocol_type="consumer", generation=1, protocol=None, leader=None, members=(member,))
    )
    assert _formatted(OFFSETS, key, value) is None
    document = _formatted("org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter", key, value)
    (written,) = document["value"]["data"]["members"]
    assert (written["memberId"], written["groupInstanceId"], written["subscription"]) == ("m", None, "AAE=")
    assert _formatted("GroupMetadataMessageFormatter", COMMIT_KEY, COMMIT) is None
    assert _formatted(OFFSETS, None, b"") is None
    assert _formatted(OFFSETS, b"\x7f\xff", b"\0\0") is None, "a kind of a newer broker"


def test_transactions_are_written_as_kafka_does() -> None:
    value = TransactionLogValue(
        producer_id=5,
        producer_epoch=1,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=(PartitionsSchema(topic="t", partition_ids=(0, 2)),),
        transaction_last_update_timestamp_ms=9,
        transaction_start_timestamp_ms=8,
    )
    document = _formatted(
        "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter",
        encode_key(TransactionLogKey("copier")),
        encode_value(value),
    )
    assert document == {
        "key": {"type": 0, "data": {"transactionalId": "copier"}},
        "value": {
            "version": 1,
            "data": {
                "producerId": 5,
                "producerEpoch": 1,
                "transactionTimeoutMs": 60000,
                "transactionStatus": 1,
                "transactionPartitions": [{"topic": "t", "partitionIds": [0, 2]}],
                "transactionLastUpdateTimestampMs": 9,
                "transactionStartTimestampMs": 8,
            },
        },
    }


def test_what_is_no_record_of_the_topic_is_an_error_with_its_offset() -> None:
    with pytest.raises(RecordFormatError, match="Could not read record at offset 7"):
        _formatted(OFFSETS, COMMIT_KEY[:5], COMMIT)


def test_unknown_formatters_are_refused_with_a_list_of_those_there_are() -> None:
    with pytest.raises(ConfigError, match="use one of default, logging, noop, offsets"):
        build_formatter("com.example.MyFormatter", {})


def test_dumped_logs_are_decoded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(encode_batch([(COMMIT_KEY, COMMIT, 0, ()), (COMMIT_KEY, None, 0, ()), (b"\x7f\xff", b"", 0, ())]))
    assert dump_log.main(["--files", str(path), "--offsets-decoder", "--skip-record-metadata"]) == 0
    lines = capsys.readouterr().out.splitlines()[-3:]
    key = 'key: {"type":"1","data":{"group":"billing","topic":"orders","partition":3}}'
    assert lines[0].startswith(f'| {key} payload: {{"version":"4","data":{{"offset":42,')
    assert lines[1] == f"| {key} payload: <DELETE>"
    assert lines[2] == "| key: Unknown record type at offset 2, skipping."

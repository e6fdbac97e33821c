"""`kafka-console-producer`: every line of standard input becomes a record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from moldau.cli.common import CommandParser, load_properties, parse_key_values, run_client, warn
from moldau.cli.records.line_reader import LineReader, LineRecord
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.cli.records.confluent import Interruption

_EXAMPLE = """\
echo hello | {prog} --bootstrap-server localhost:9092 --topic greetings
{prog} --bootstrap-server localhost:9092 --topic orders --reader-property parse.key=true \\
    --reader-property key.separator=:"""

# Options that are another spelling of a producer property.
_PROPERTIES = {
    "request_required_acks": "acks",
    "request_timeout_ms": "request.timeout.ms",
    "message_send_max_retries": "retries",
    "retry_backoff_ms": "retry.backoff.ms",
    "timeout": "linger.ms",
    "socket_buffer_size": "send.buffer.bytes",
    "max_memory_bytes": "buffer.memory",
    "batch_size": "batch.size",
    "max_partition_memory_bytes": "batch.size",
    "metadata_expiry_ms": "metadata.max.age.ms",
    "max_block_ms": "max.block.ms",
    "compression_codec": "compression.type",
}
_MAX_BLOCK_MS = 60_000


def main(argv: Sequence[str] | None = None, prog: str = "kafka-console-producer") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    parser.require(args, "--topic")
    parser.require_connection(args)
    if args.line_reader.rpartition(".")[2] != "LineMessageReader":
        parser.error(f"unknown line reader {args.line_reader}: only LineMessageReader is supported")
    return run_client(prog, lambda: _produce(args))


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Send each line of standard input as a record.", _EXAMPLE)
    parser.add_connection(old_name="--broker-list")
    parser.add_argument("--topic", metavar="NAME", help="the topic to write to")
    parser.add_flag("--sync", "wait for the acknowledgement of each record before sending the next")
    parser.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="the compression codec (default: none; gzip if the option has no value)",
    )
    parser.add_argument("--request-required-acks", "--acks", metavar="N", help="0, 1 or all (-1); default: all")
    parser.add_argument("--timeout", metavar="MS", type=int, help="linger.ms: how long a batch waits to fill")
    for name, text in (
        ("--batch-size", "batch.size in bytes"),
        ("--max-partition-memory-bytes", "the same as --batch-size"),
        ("--max-memory-bytes", "buffer.memory"),
        ("--message-send-max-retries", "retries"),
        ("--retry-backoff-ms", "retry.backoff.ms"),
        ("--request-timeout-ms", "request.timeout.ms"),
        ("--metadata-expiry-ms", "metadata.max.age.ms"),
        ("--max-block-ms", f"how long to wait for the topic's metadata, in milliseconds (default: {_MAX_BLOCK_MS})"),
        ("--socket-buffer-size", "send.buffer.bytes"),
    ):
        parser.add_argument(name, metavar="N", type=int, help=text)
    parser.add_argument(
        "--reader-property",
        "--property",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
        "headers.key.separator, null.marker, ignore.error",
    )
    parser.add_argument("--reader-config", metavar="FILE", help="properties file for the reader")
    parser.add_argument("--line-reader", default="LineMessageReader", help=argparse.SUPPRESS)
    parser.add_argument(
        "--command-property",
        "--producer-property",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="producer property; takes precedence over --command-config",
    )
    parser.add_argument(
        "--command-config", "--producer.config", metavar="FILE", help="properties file for the producer"
    )
    parser.add_flag("--json", "print the partition and offset of each record as a JSON object on one line")
    return parser


def producer_properties(args: argparse.Namespace) -> dict[str, str]:
    props = load_properties(args.command_config) | parse_key_values(args.command_property)
    for option, name in _PROPERTIES.items():
        value = getattr(args, option)
        if value is not None:
            props[name] = str(value)
    return props


def _produce(args: argparse.Namespace) -> int:
    from moldau.cli.records import confluent

    reader = LineReader(load_properties(args.reader_config) | parse_key_values(args.reader_property))
    props = producer_properties(args)
    config = confluent.client_config(props, args.bootstrap_server, "console-producer")
    producer = confluent.producer(config, args.topic)
    max_block_ms = confluent.milliseconds(props, "max.block.ms", _MAX_BLOCK_MS)
    deliveries = Deliveries(as_json=args.json)
    with confluent.Interruption() as interruption:
        try:
            confluent.cluster_metadata(producer, args.topic, max_block_ms, interruption)
            for line in _lines(sys.stdin.buffer, interruption):
                _send(producer, args.topic, reader.parse(line), deliveries)
                if args.sync:
                    producer.flush()
                    deliveries.raise_if_failed()
        except KeyboardInterrupt:
            pass  # the usual way to end it: send what was typed, then go
        finally:
            producer.flush()
    return 1 if deliveries.failed else 0


def _lines(stream: BinaryIO, interruption: Interruption) -> Iterator[bytes]:
    prompt = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        if prompt:
            print(">", end="", flush=True)
        with interruption.breaking():
            line = stream.readline()
        if not line:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _send(producer: Any, topic: str, record: LineRecord, deliveries: Deliveries) -> None:
    from confluent_kafka import KafkaException

    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=record.headers, on_delivery=deliveries.on_delivery
            )
            break
        except BufferError:
            producer.poll(0.1)  # the queue is full: wait for acknowledgements
        except KafkaException as error:  # refused before it was sent, like a record that is too large
            deliveries.failure(error.args[0], topic, record.key, record.value)
            break
    producer.poll(0)


class Deliveries:
    """What became of the records: failures are said on stderr as they come, and make the exit code 1."""

    def __init__(self, *, as_json: bool) -> None:
        self.failed = 0
        self._as_json = as_json

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failure(error, message.topic(), message.key(), message.value())
        elif self._as_json:
            _print_delivery(message)

    def failure(self, error: Any, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.failed += 1
        sizes = ["null" if data is None else f"{len(data)} bytes" for data in (key, value)]
        warn(
            f"Error when sending message to topic {topic} with key: {sizes[0]}, value: {sizes[1]} "
            f"with error: {error.str()}{_hint(error, key)}"
        )

    def raise_if_failed(self) -> None:
        if self.failed:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "stopped after the first failed record")


def _hint(error: Any, key: bytes | None) -> str:
    """librdkafka drops the broker's own words about a record it refuses; this is the usual reason."""
    from confluent_kafka import KafkaError as Codes

    if error.code() == Codes.INVALID_RECORD and key is None:
        return " (cleanup.policy=compact requires records with a key: --reader-property parse.key=true)"
    return ""


def _print_delivery(message: Any) -> None:
    _, timestamp_ms = message.timestamp()
    print(
        json.dumps(
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp": timestamp_ms,
            }
        ),
        flush=True,
    )

"""`kafka-console-share-consumer`: records of a topic on standard output, taken as a member of a share group.

Each record is acknowledged after it was written: accepted, or as --reject and --release say. What was fetched
and not printed goes back to the group.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import CommandParser, run_client, warn
from moldau.cli.records.console_consumer import (
    add_formatting,
    add_properties,
    api_timeout_ms,
    chosen_formatter,
    explained,
    given_properties,
    report,
)
from moldau.cli.records.formatters import Formatter
from moldau.errors import RecordFormatError

if TYPE_CHECKING:
    from moldau.cli.records.confluent import Interruption

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --topic jobs --group workers
{prog} --bootstrap-server localhost:9092 --topic jobs --release --max-messages 10"""
_GROUP = "console-share-consumer"
_POLL_S = 0.1


def main(argv: Sequence[str] | None = None, prog: str = "kafka-console-share-consumer") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    parser.require(args, "--topic")
    parser.require_connection(args)
    if args.reject and args.release:
        parser.error("At most one of --reject and --release may be specified")
    return run_client(prog, lambda: _consume(args))


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Print the records of a topic as a member of a share group.", _EXAMPLE)
    parser.add_connection()
    parser.add_argument("--topic", metavar="NAME", help="the topic to read")
    parser.add_argument("--group", metavar="ID", help=f"the share group (default: {_GROUP})")
    parser.add_argument("--max-messages", metavar="N", type=int, default=-1, help="stop after this number of records")
    parser.add_argument(
        "--timeout-ms", metavar="MS", type=int, default=-1, help="stop if no record arrives within this time"
    )
    parser.add_flag("--reject", "reject the records: they are not delivered again")
    parser.add_flag("--release", "release the records: they are delivered again")
    parser.add_flag("--reject-message-on-error", "reject records that cannot be printed")
    add_formatting(parser)
    add_properties(parser, "--consumer-config")
    parser.add_argument("--enable-systest-events", action="store_true", help=argparse.SUPPRESS)
    parser.add_flag("--json", "print each record as a JSON object on one line")
    return parser


def _consume(args: argparse.Namespace) -> int:
    from moldau.cli.records import confluent
    from moldau.client import groups

    formatter = chosen_formatter(args)
    props = {"group.id": _GROUP} | given_properties(args) | {"share.acknowledgement.mode": "explicit"}
    config = confluent.client_config(props, args.bootstrap_server, _GROUP)
    consumer = confluent.share_consumer(config)
    taker = Taker(consumer, args, formatter, config["error_cb"])
    with (
        confluent.Interruption() as interruption,
        explained(args, props, groups.SHARE),
        confluent.closing(consumer, taker),
    ):
        confluent.require_broker(config, api_timeout_ms(args, props), interruption)
        consumer.subscribe([args.topic])
        _poll(consumer, args, taker, interruption)
    return 0


def _poll(consumer: Any, args: argparse.Namespace, taker: Taker, interruption: Interruption) -> None:
    last_record = time.monotonic()
    while taker.wants_more():
        interruption.check()
        batch = list(consumer.poll(_POLL_S))
        count = taker.count
        taker.take(batch)
        if taker.count > count:  # errors come in batches too, and end no silence
            last_record = time.monotonic()
        elif 0 <= args.timeout_ms <= (time.monotonic() - last_record) * 1000:
            return


class Taker:
    """Prints what it is given and settles every record of it: a record left open would keep the group waiting."""

    def __init__(
        self, consumer: Any, args: argparse.Namespace, formatter: Formatter, warn_once: Callable[[Any], None]
    ) -> None:
        from confluent_kafka import AcknowledgeType

        self.count = 0
        self._consumer = consumer
        self._formatter = formatter
        self._warn_once = warn_once
        self._max = args.max_messages
        self._rejects_errors = args.reject_message_on_error
        self._kinds = AcknowledgeType
        kind = AcknowledgeType.RELEASE if args.release else AcknowledgeType.ACCEPT
        self._settled_as = AcknowledgeType.REJECT if args.reject else kind

    def wants_more(self) -> bool:
        return bool(self._max < 0 or self.count < self._max)

    def take(self, batch: Sequence[Any]) -> None:
        records = []
        for message in batch:
            if message.error() is None:
                records.append(message)
            else:
                report(message.error(), self._warn_once)
        settled: list[tuple[Any, Any]] = []
        try:
            lines = [line for record in records if (line := self._line(record, settled)) is not None]
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
        except BaseException:
            settled = []  # nobody has seen them
            raise
        finally:
            self._settle(records, settled)

    def _line(self, record: Any, settled: list[tuple[Any, Any]]) -> bytes | None:
        if not self.wants_more():
            return None
        try:
            line = self._formatter(record)
        except RecordFormatError as error:
            if not self._rejects_errors:
                raise
            warn(f"Error processing message, rejecting this message: {error}")
            line, kind = b"", self._kinds.REJECT
        else:
            kind = self._settled_as
        self.count += 1
        settled.append((record, kind))
        return line

    def _settle(self, records: Iterable[Any], settled: Sequence[tuple[Any, Any]]) -> None:
        seen = {id(record) for record, _ in settled}
        rest = [(record, self._kinds.RELEASE) for record in records if id(record) not in seen]
        for record, kind in (*settled, *rest):
            self._consumer.acknowledge(record, kind)

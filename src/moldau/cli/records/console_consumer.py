"""`kafka-console-consumer`: records of topics on standard output.

With a group it subscribes; without one it assigns itself every partition and asks no coordinator, so that
looking into a topic leaves no trace in the cluster.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moldau.cli.common import (
    CommandParser,
    cluster_config,
    load_properties,
    parse_key_values,
    run_client,
    topic_pattern,
    warn,
)
from moldau.cli.records.assignment import Assignment, Subscription
from moldau.cli.records.formatters import Formatter, JsonFormatter, build_formatter
from moldau.errors import ConfigError, ErrorCode, KafkaError, MoldauError, RecordFormatError

if TYPE_CHECKING:
    from moldau.cli.records.confluent import Interruption

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --topic orders --from-beginning --max-messages 10
{prog} --bootstrap-server localhost:9092 --topic orders --group billing"""
_BATCH_MAX = 500  # records a poll: enough for speed, few enough that Ctrl-C is felt at once
_POLL_S = 0.1
_API_TIMEOUT_MS = 60_000
_METADATA_MAX_AGE_MS = 300_000
_GROUP_TYPE_TIMEOUT_MS = 3_000


def main(argv: Sequence[str] | None = None, prog: str = "kafka-console-consumer") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    _check(parser, args)
    return run_client(prog, lambda: _consume(args))


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Print the records of topics.", _EXAMPLE)
    parser.add_connection()
    parser.add_argument("--topic", metavar="NAME", help="the topic to read")
    parser.add_argument(
        "--include", "--whitelist", metavar="REGEX", help="regular expression of the topics to read, instead of --topic"
    )
    parser.add_argument("--partition", metavar="N", type=int, help="read only this partition")
    parser.add_argument("--offset", metavar="WHERE", help="with --partition: earliest, latest (default) or an offset")
    parser.add_flag("--from-beginning", "start at the earliest record if the group has no committed offset")
    parser.add_argument("--max-messages", metavar="N", type=int, help="stop after this number of records")
    parser.add_argument("--timeout-ms", metavar="MS", type=int, help="stop if no record arrives within this time")
    parser.add_argument("--group", metavar="ID", help="read as a member of this consumer group")
    parser.add_argument(
        "--isolation-level",
        choices=("read_committed", "read_uncommitted"),
        default="read_uncommitted",
        help="read_committed skips records of open and aborted transactions",
    )
    add_formatting(parser)
    add_properties(parser, "--consumer.config")
    parser.add_flag("--skip-message-on-error", "skip records that cannot be printed")
    for old in ("--enable-systest-events", "--new-consumer"):
        parser.add_argument(old, action="store_true", help=argparse.SUPPRESS)
    parser.add_flag("--json", "print each record as a JSON object on one line")
    return parser


def add_properties(parser: CommandParser, old_config: str) -> None:
    """`old_config` is what Kafka called --command-config in this command before."""
    parser.add_argument(
        "--command-property",
        "--consumer-property",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="consumer property; takes precedence over --command-config",
    )
    parser.add_argument("--command-config", old_config, metavar="FILE", help="properties file for the consumer")


def add_formatting(parser: CommandParser) -> None:
    parser.add_argument("--formatter", metavar="NAME", default="default", help="default, logging, noop or a class name")
    parser.add_argument(
        "--formatter-property",
        "--property",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="print.timestamp, print.partition, print.offset, print.epoch, print.headers, print.key, "
        "print.value (true or false); key.separator, line.separator, headers.separator, null.literal; "
        "key.deserializer, value.deserializer, headers.deserializer",
    )
    parser.add_argument("--formatter-config", metavar="FILE", help="properties file for the formatter")
    parser.add_argument("--key-deserializer", metavar="CLASS", help="key.deserializer of the formatter")
    parser.add_argument("--value-deserializer", metavar="CLASS", help="value.deserializer of the formatter")


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    if (args.topic is None) == (args.include is None):
        parser.error("Exactly one of --topic and --include is required")
    if args.partition is not None:
        if args.topic is None:
            parser.error("The topic is required when partition is specified")
        if args.from_beginning and args.offset is not None:
            parser.error("Options --from-beginning and --offset cannot be specified together")
        if args.group is not None:
            parser.error("Options --group and --partition cannot be specified together")
    elif args.offset is not None:
        parser.error("The partition is required when offset is specified")
    if args.offset is not None and args.offset.lower() not in ("earliest", "latest") and not args.offset.isdigit():
        parser.error(
            f"The provided offset value '{args.offset}' is incorrect. Valid values are 'earliest', 'latest', "
            "or a non-negative number"
        )
    parser.require_connection(args)


def consumer_properties(args: argparse.Namespace) -> dict[str, str]:
    """The consumer's properties; `group.id` is among them exactly when a group was asked for."""
    props = given_properties(args)
    if "group.id" in props and args.partition is not None:
        raise ConfigError("Options group and partition cannot be specified together")
    reset = props.setdefault("auto.offset.reset", "earliest" if args.from_beginning else "latest")
    if args.from_beginning and reset != "earliest":
        raise ConfigError(f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}'")
    props.setdefault("isolation.level", args.isolation_level)
    props.setdefault("allow.auto.create.topics", "true")
    return props


def given_properties(args: argparse.Namespace) -> dict[str, str]:
    """File and options together, with the one group that they and --group agree on, if any."""
    from_file = load_properties(args.command_config)
    from_options = parse_key_values(args.command_property)
    groups = {group for group in (args.group, from_file.get("group.id"), from_options.get("group.id")) if group}
    if len(groups) > 1:
        raise ConfigError(
            "The group ids provided in different places (--group, --command-property, --command-config) "
            f"do not match: {', '.join(sorted(groups))}"
        )
    props = from_file | from_options
    props.pop("group.id", None)
    if groups:
        props["group.id"] = groups.pop()
    return props


def chosen_formatter(args: argparse.Namespace) -> Formatter:
    if args.json:
        return JsonFormatter()
    props = load_properties(args.formatter_config)
    if args.key_deserializer:
        props["key.deserializer"] = args.key_deserializer
    if args.value_deserializer:
        props["value.deserializer"] = args.value_deserializer
    return build_formatter(args.formatter, props | parse_key_values(args.formatter_property))


def _consume(args: argparse.Namespace) -> int:
    from moldau.cli.records import confluent
    from moldau.client import groups

    formatter = chosen_formatter(args)
    props = consumer_properties(args)
    config = confluent.client_config(props, args.bootstrap_server, "console-consumer")
    if "group.id" not in props:
        # librdkafka wants a group id even from those who will never join or commit.
        config |= {"group.id": "console-consumer", "enable.auto.commit": "false"}
    consumer = confluent.consumer(config, args.topic)
    printer = Printer(formatter, skip_errors=args.skip_message_on_error, warn_once=config["error_cb"])
    with (
        confluent.Interruption() as interruption,
        explained(args, props, groups.CONSUMER),
        confluent.closing(consumer, printer),
    ):
        _poll(consumer, args, _partitions(consumer, args, props, interruption), printer, interruption)
    return 0


def _first_offset(props: dict[str, str]) -> str | None:
    commits = props.get("enable.auto.commit", "true").strip().lower() == "true"
    start = props["auto.offset.reset"].strip()
    return start if commits and start in ("earliest", "latest") else None


def api_timeout_ms(args: argparse.Namespace, props: Mapping[str, str]) -> int:
    """How long a broker may take to answer at all."""
    from moldau.cli.records.confluent import milliseconds

    timeout_ms = milliseconds(props, "default.api.timeout.ms", _API_TIMEOUT_MS)
    given_ms = -1 if args.timeout_ms is None else args.timeout_ms
    return timeout_ms if given_ms < 0 else min(timeout_ms, given_ms)


def _partitions(
    consumer: Any, args: argparse.Namespace, props: dict[str, str], interruption: Interruption
) -> Assignment | Subscription:
    from moldau.cli.records.confluent import cluster_metadata, milliseconds

    if "group.id" in props:
        # Who only subscribes is never told that no broker answers.
        cluster_metadata(consumer, args.topic, api_timeout_ms(args, props), interruption)
        return Subscription(
            consumer,
            args.topic or f"^({topic_pattern(args.include).pattern})$",
            first_offset=_first_offset(props),
        )
    return Assignment(
        consumer,
        topic=args.topic,
        include=args.include,
        partition=args.partition,
        start=args.offset or props["auto.offset.reset"],
        api_timeout_ms=api_timeout_ms(args, props),
        max_age_ms=milliseconds(props, "metadata.max.age.ms", _METADATA_MAX_AGE_MS),
    )


def _poll(
    consumer: Any,
    args: argparse.Namespace,
    partitions: Assignment | Subscription,
    printer: Printer,
    interruption: Interruption,
) -> None:
    last_record = time.monotonic()
    while args.max_messages is None or args.max_messages < 0 or printer.count < args.max_messages:
        interruption.check()
        partitions.refresh(interruption)
        remaining = _BATCH_MAX
        if args.max_messages is not None and args.max_messages >= 0:
            # Never more than will be printed: what is handed out counts as consumed when the group commits.
            remaining = min(_BATCH_MAX, args.max_messages - printer.count)
        batch = consumer.consume(remaining, _POLL_S)
        count = printer.count
        printer.write(batch)
        if printer.count > count:  # errors come in batches too, and end no silence
            last_record = time.monotonic()
        elif args.timeout_ms is not None and 0 <= args.timeout_ms <= (time.monotonic() - last_record) * 1000:
            return


class Printer:
    def __init__(self, formatter: Formatter, *, skip_errors: bool, warn_once: Callable[[Any], None]) -> None:
        self.count = 0
        self._warn_once = warn_once
        self._formatter = formatter
        self._skip_errors = skip_errors

    def write(self, batch: Sequence[Any]) -> None:
        lines = []
        try:
            for message in batch:
                if message.error() is not None:
                    report(message.error(), self._warn_once)
                    continue
                self.count += 1
                try:
                    lines.append(self._formatter(message))
                except RecordFormatError as error:
                    if not self._skip_errors:
                        raise
                    warn(f"Error processing message, skipping this message: {error}")
        finally:
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()


def report(error: Any, warn_once: Callable[[Any], None]) -> None:
    """Most errors pass (a broker restarts, a leader moves); those that cannot end the command."""
    from confluent_kafka import KafkaError as Codes
    from confluent_kafka import KafkaException

    if error.fatal() or error.code() in (
        Codes.TOPIC_AUTHORIZATION_FAILED,
        Codes.GROUP_AUTHORIZATION_FAILED,
        Codes.INCONSISTENT_GROUP_PROTOCOL,
        Codes.INVALID_GROUP_ID,
        Codes.GROUP_ID_NOT_FOUND,
        Codes.UNSUPPORTED_VERSION,
        Codes._FATAL,
        Codes._AUTO_OFFSET_RESET,
        Codes._AUTHENTICATION,
    ):
        raise KafkaException(error)
    warn_once(error)


@contextmanager
def explained(args: argparse.Namespace, props: Mapping[str, str], wanted: str) -> Iterator[None]:
    """Inside, what a group refuses because it is of another type than `wanted` comes out with that reason."""
    from confluent_kafka import KafkaError as Codes
    from confluent_kafka import KafkaException

    from moldau.client import groups

    try:
        yield
    except KafkaException as error:
        if error.args[0].code() not in (Codes.INCONSISTENT_GROUP_PROTOCOL, Codes.GROUP_ID_NOT_FOUND, Codes._FATAL):
            raise
        kind = _group_type(args, props)
        if wanted == groups.SHARE and kind not in (None, groups.SHARE):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{props['group.id']} is not a share group"
            ) from None
        if wanted != groups.SHARE and kind in (groups.SHARE, groups.STREAMS):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{props['group.id']} is a {kind.lower()} group"
            ) from None
        raise


def _group_type(args: argparse.Namespace, props: Mapping[str, str]) -> str | None:
    from moldau.client import groups
    from moldau.client.cluster import ClusterClient

    config = cluster_config(args, props)._replace(api_timeout_ms=_GROUP_TYPE_TIMEOUT_MS)
    try:
        with ClusterClient(config) as cluster:
            types = {listing.group: listing.type for listing in groups.list_groups(cluster)}
    except MoldauError:
        return None  # the error at hand says enough
    return types.get(props.get("group.id", ""))

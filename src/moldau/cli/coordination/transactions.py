"""`kafka-transactions`: what coordinators and partitions know of transactions, and a way out of those that hang."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from moldau.cli.common import CommandParser, missing_topic, print_json, print_tabbed, run_with_cluster
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient
    from moldau.client.transactions import ProducerState, TransactionDescription

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 list
{prog} --bootstrap-server localhost:9092 find-hanging --topic orders
{prog} --bootstrap-server localhost:9092 abort --topic orders --partition 0 --start-offset 42"""
_PARTITIONS_MAX = 500  # in one DescribeProducers request; a broker may have many thousands
_MS_PER_MINUTE = 60_000


def main(argv: Sequence[str] | None = None, prog: str = "kafka-transactions") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.error(f"Missing a command: one of {', '.join(_COMMANDS)}")
    parser.require_connection(args)

    return run_with_cluster(prog, args, _COMMANDS[args.command])


class _Subcommand(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "List and describe transactions, and abort hanging ones.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_json()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Subcommand)
    listing = commands.add_parser("list", help="list transactional ids and the state of their transactions")
    listing.add_argument(
        "--duration-filter",
        metavar="MS",
        type=int,
        default=-1,
        help="only transactions that have been running longer than this",
    )
    listing.add_argument("--transactional-id-pattern", metavar="REGEX", help="only these transactional ids")

    describe = commands.add_parser("describe", help="describe the transaction of a transactional id")
    describe.add_argument("--transactional-id", metavar="ID", required=True, help="the transactional id")

    producers = commands.add_parser("describe-producers", help="describe the active producers of a partition")
    _add_partition(producers)
    producers.add_argument("--broker-id", metavar="ID", type=int, help="query this replica instead of the leader")

    abort = commands.add_parser("abort", help="abort a hanging transaction in a partition")
    _add_partition(abort)
    abort.add_argument("--start-offset", metavar="OFFSET", type=int, help="the offset at which the transaction starts")
    abort.add_argument(
        "--producer-id", metavar="ID", type=int, help="for brokers older than Kafka 3.0: the producer id"
    )
    abort.add_argument("--producer-epoch", metavar="EPOCH", type=int, help="with --producer-id: the producer epoch")
    abort.add_argument(
        "--coordinator-epoch", metavar="EPOCH", type=int, help="with --producer-id: the coordinator epoch"
    )

    hanging = commands.add_parser("find-hanging", help="find transactions that no coordinator knows")
    hanging.add_argument("--broker-id", metavar="ID", type=int, help="search the partitions of this broker")
    hanging.add_argument("--topic", metavar="NAME", help="search only this topic")
    hanging.add_argument("--partition", metavar="N", type=int, help="search only this partition of the topic")
    hanging.add_argument(
        "--max-transaction-timeout",
        metavar="MIN",
        type=int,
        default=15,
        help="ignore transactions younger than this many minutes (default: 15)",
    )

    force = commands.add_parser("forceTerminateTransaction", help="abort the open transaction of a transactional id")
    force.add_argument(
        "--transactionalId", dest="transactional_id", metavar="ID", required=True, help="the transactional id"
    )
    for command in commands.choices.values():  # people write it at the end
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="NAME", required=True, help="the topic")
    parser.add_argument("--partition", metavar="N", type=int, required=True, help="the partition")


def _list(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import transactions

    listings = transactions.list_transactions(
        cluster, duration_ms=max(-1, args.duration_filter), id_pattern=args.transactional_id_pattern
    )
    _print(args, ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), listings)


def _describe(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import transactions

    transactional_id = args.transactional_id
    found = transactions.describe_transactions(cluster, [transactional_id])[transactional_id]
    if isinstance(found, KafkaError):
        raise _failed(f"describe transaction state of transactional-id `{transactional_id}`", found)
    started = found.start_time_ms
    row = (
        found.coordinator,
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        started,
        None if started is None else _now_ms() - started,
        ",".join(map(str, found.partitions)),
    )
    _print(
        args,
        (
            "CoordinatorId",
            "TransactionalId",
            "ProducerId",
            "ProducerEpoch",
            "TransactionState",
            "TransactionTimeoutMs",
            "CurrentTransactionStartTimeMs",
            "TransactionDurationMs",
            "TopicPartitions",
        ),
        [row],
    )


def _describe_producers(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import transactions

    partition = TopicPartition(args.topic, args.partition)
    found = transactions.describe_producers(cluster, [partition], broker_id=args.broker_id)[partition]
    if isinstance(found, KafkaError):
        where = "leader" if args.broker_id is None else f"broker {args.broker_id}"
        raise _failed(f"describe producers for partition {args.topic}-{args.partition} on {where}", found)
    _print(
        args,
        (
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ),
        found,
    )


def _abort(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import transactions

    partition = TopicPartition(args.topic, args.partition)
    if args.start_offset is not None:
        producer = _producer_at(cluster, partition, args.start_offset)
        ids = producer.producer_id, producer.producer_epoch, producer.coordinator_epoch
    elif args.producer_id is None:
        raise ConfigError(
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) "
            "or with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    elif args.producer_epoch is None or args.coordinator_epoch is None:
        raise ConfigError("--producer-id requires --producer-epoch and --coordinator-epoch")
    else:
        ids = args.producer_id, args.producer_epoch, args.coordinator_epoch
    producer_id, producer_epoch, coordinator_epoch = ids
    what = f"the transaction of producer {producer_id} in {args.topic}-{args.partition}"
    _require_hanging(cluster, partition, producer_id, what)
    try:
        transactions.abort_transaction(
            cluster,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            # -1 is a producer whose first transaction hangs. 0 is no higher than any coordinator's epoch.
            coordinator_epoch=max(0, coordinator_epoch),
        )
    except KafkaError as error:
        raise _failed(f"abort {what}", error) from None
    _tell(args, f"Aborted {what}.")


def _require_hanging(cluster: ClusterClient, partition: TopicPartition, producer_id: int, what: str) -> None:
    """A marker written past a coordinator that will write one too would split the transaction: aborted here only."""
    try:
        known = _known_transactions(cluster, [producer_id]).get(producer_id)
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:  # a broker before Kafka 3.0: who aborts has to know
            return
        raise
    if is_expected(partition, known) and not isinstance(known, KafkaError | None):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"Refused to abort {what}: it does not hang, its coordinator knows it as {known.state} "
            f"(forceTerminateTransaction --transactionalId {known.transactional_id} aborts it as a whole)",
        )


def _known_transactions(
    cluster: ClusterClient, producer_ids: Sequence[int]
) -> dict[int, TransactionDescription | KafkaError]:
    """What coordinators know of these producers' transactions; those of whom none knows are left out."""
    from moldau.client import transactions

    listings = transactions.list_transactions(cluster, producer_ids=producer_ids) if producer_ids else []
    described = transactions.describe_transactions(cluster, [listing.transactional_id for listing in listings])
    return {listing.producer_id: described[listing.transactional_id] for listing in listings}


def _producer_at(cluster: ClusterClient, partition: TopicPartition, start_offset: int) -> ProducerState:
    from moldau.client import transactions

    name = str(partition)
    found = transactions.describe_producers(cluster, [partition])[partition]
    if isinstance(found, KafkaError):
        raise _failed(f"validate producer state for partition {name}", found)
    for producer in found:
        if producer.txn_start_offset == start_offset:
            return producer
    raise KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"Could not find any open transactions starting at offset {start_offset} on partition {name}",
    )


def _find_hanging(cluster: ClusterClient, args: argparse.Namespace) -> None:
    if args.topic is None and args.broker_id is None:
        raise ConfigError(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    if args.partition is not None and args.topic is None:
        raise ConfigError("The --partition argument requires --topic to be provided")
    older_than_ms = _now_ms() - args.max_transaction_timeout * _MS_PER_MINUTE
    open_ = [
        (partition, producer)
        for partition, producer in _producers(cluster, _search(cluster, args), args.broker_id)
        if producer.txn_start_offset is not None and producer.last_timestamp_ms < older_than_ms
    ]
    known = _known_transactions(cluster, sorted({producer.producer_id for _, producer in open_}))
    hanging = [
        (
            *partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.txn_start_offset,
            producer.last_timestamp_ms,
            (_now_ms() - producer.last_timestamp_ms) // _MS_PER_MINUTE,
        )
        for partition, producer in open_
        if not is_expected(partition, known.get(producer.producer_id))
    ]
    headers = ("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset")
    _print(args, (*headers, "LastTimestamp", "Duration(min)"), hanging)


def is_expected(partition: TopicPartition, transaction: TransactionDescription | KafkaError | None) -> bool:
    """Whether the coordinator still knows that it has to end the transaction in this partition."""
    if isinstance(transaction, KafkaError):
        if transaction.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise transaction
        return False
    return transaction is not None and partition in transaction.partitions


def _search(cluster: ClusterClient, args: argparse.Namespace) -> list[TopicPartition]:
    if args.partition is not None:
        return [TopicPartition(args.topic, args.partition)]
    if args.broker_id is not None:
        cluster.broker(args.broker_id)  # fails for one that is not there: it would have no partitions either
    topics = cluster.metadata(None if args.topic is None else [args.topic]).topics
    if args.topic is not None and topics[args.topic].error:
        raise missing_topic(cluster, args.topic)
    return [
        TopicPartition(topic.name, p.partition)
        for topic in topics.values()
        for p in topic.partitions
        if args.broker_id is None or args.broker_id in p.replicas
    ]


def _producers(
    cluster: ClusterClient, partitions: Sequence[TopicPartition], broker_id: int | None
) -> Iterable[tuple[TopicPartition, ProducerState]]:
    from moldau.client import transactions

    for start in range(0, len(partitions), _PARTITIONS_MAX):
        batch = partitions[start : start + _PARTITIONS_MAX]
        for partition, found in transactions.describe_producers(cluster, batch, broker_id=broker_id).items():
            if isinstance(found, KafkaError):
                raise _failed(f"describe producers of partition {partition}", found)
            yield from ((partition, producer) for producer in found)


def _force_terminate(cluster: ClusterClient, args: argparse.Namespace) -> None:
    """Looks first: fencing would create a transactional id that is not there."""
    from moldau.client import transactions

    name = args.transactional_id
    found = transactions.describe_transactions(cluster, [name])[name]
    if isinstance(found, KafkaError):
        raise _failed(f"force terminate transactionalId `{name}`", found)
    if found.state != "Ongoing":  # one that is being ended ends without us
        _tell(args, f"transactionalId `{name}` has no ongoing transaction (its state is {found.state}).")
        return
    try:
        transactions.fence_producer(cluster, name)
    except KafkaError as error:
        raise _failed(f"force terminate transactionalId `{name}`", error) from None
    _tell(args, f"The open transaction of transactionalId `{name}` was aborted.")


def _failed(what: str, error: KafkaError) -> KafkaError:
    return KafkaError(error.code, f"Failed to {what}: {error}")


def _tell(args: argparse.Namespace, text: str) -> None:
    if args.json:
        print_json({"message": text})
    else:
        print(text)


def _now_ms() -> int:
    return round(time.time() * 1000)


def _print(args: argparse.Namespace, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if args.json:
        names = [header[0].lower() + header[1:].replace("(min)", "Min") for header in headers]
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    lines = [["None" if cell is None else str(cell) for cell in row] for row in rows]
    print_tabbed(headers, lines)


_COMMANDS = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _force_terminate,
}

"""`kafka-consumer-groups`: list, describe and delete consumer groups, reset and delete their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.cli.common import CommandParser, print_json, warn
from moldau.cli.coordination.group_common import (
    NOTHING,
    add_group_options,
    assignment_text,
    check_group_options,
    coordinator_text,
    group_json,
    members_json,
    parse_names,
    print_columns,
    print_deleted,
    print_plan,
    raise_failed,
    require_groups,
    run_action,
)
from moldau.cli.coordination.reset_offsets import (
    all_partitions,
    leaders,
    log_offsets,
    named_partitions,
    plan_reset,
    read_plan,
    within_logs,
    write_plan,
)
from moldau.errors import ErrorCode, InvalidRegexError, KafkaError
from moldau.wire.constants import LATEST
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.cli.coordination.reset_offsets import Offsets
    from moldau.client.cluster import ClusterClient
    from moldau.client.groups import CommittedOffset, GroupDescription, Member

_ACTIONS = ("--list", "--describe", "--delete", "--reset-offsets", "--delete-offsets", "--validate-regex")
_SCENARIOS = (
    "--to-earliest",
    "--to-latest",
    "--to-current",
    "--to-offset",
    "--to-datetime",
    "--by-duration",
    "--shift-by",
    "--from-file",
)
_STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Empty", "Dead")
_REBALANCING = _STATES[:4]
_PREFIX = "Error: Executing consumer group command failed due to "
_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --describe --group billing
{prog} --bootstrap-server localhost:9092 --reset-offsets --group billing --all-topics --to-earliest"""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-consumer-groups") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    _check(parser, args)
    if args.validate_regex is not None:
        return _validate_regex(args.validate_regex)
    return run_action(prog, args, _WORK, prefix=_PREFIX)


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "List, describe and delete consumer groups, reset and delete offsets.", _EXAMPLE)
    parser.add_flag("--list", "list consumer groups")
    parser.add_flag("--describe", "show offsets and lag, members, or the state")
    parser.add_flag("--delete", "delete groups that have no members")
    parser.add_flag(
        "--reset-offsets",
        "reset the offsets of groups that have no members; without --execute, only show the new offsets",
    )
    parser.add_flag("--delete-offsets", "delete offsets of a group")
    parser.add_argument(
        "--validate-regex", metavar="REGEX", help="check whether a regular expression is valid for a subscription"
    )
    add_group_options(parser, "consumer")
    parser.add_argument(
        "--type",
        metavar="TYPE,…",
        nargs="?",
        const="",
        help="with --list: show the types, or list only groups of these types",
    )
    parser.add_flag("--to-current", "reset to the committed offset, or to the latest if there is none")
    parser.add_argument("--to-offset", metavar="N", type=int, help="reset to this offset")
    parser.add_argument(
        "--by-duration", metavar="PnDTnHnMnS", help="reset to the first offset within this duration from now"
    )
    parser.add_argument(
        "--shift-by", metavar="N", type=int, help="shift the current offset by N, which may be negative"
    )
    parser.add_argument("--from-file", metavar="FILE", help="reset to the offsets in a CSV file written by --export")
    parser.add_flag("--export", "with --reset-offsets: print the new offsets as CSV")
    return parser


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    check_group_options(parser, args, _ACTIONS, _SCENARIOS)
    if args.validate_regex is not None:
        return
    parser.require_connection(args)
    require_groups(parser, args, "--describe", "--delete", "--reset-offsets")
    parser.allow_with(args, "--type", "--list")
    parser.allow_with(args, "--export", "--reset-offsets")
    if args.reset_offsets and args.from_file is None and not (args.topic or args.all_topics):
        parser.error("One of the reset scopes should be defined: --all-topics, --topic")


def _validate_regex(text: str) -> int:
    from moldau.wire.re2 import check_syntax

    try:
        check_syntax(text)
    except InvalidRegexError as error:
        print(f"The regular expression `{text}` is invalid: {error.reason}.")
        return 1
    print(f"The regular expression `{text}` is valid.")
    return 0


def _list(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    types = parse_names(args.type or "", (groups.CLASSIC, groups.CONSUMER), "type")
    listings = [
        listing
        for listing in groups.list_groups(
            cluster,
            states=parse_names(args.state or "", _STATES, "state"),
            types=types or (groups.CLASSIC, groups.CONSUMER),
        )
        if listing.protocol in groups.CONSUMER_PROTOCOLS
    ]
    if args.json:
        print_json([listing._asdict() for listing in listings])
    elif args.type is None and args.state is None:
        for listing in listings:
            print(listing.group)
    else:
        columns = [
            "group",
            *(["type"] if args.type is not None else []),
            *(["state"] if args.state is not None else []),
        ]
        width = max((len(listing.group) for listing in listings), default=0)
        print_columns(
            [name.upper() for name in columns],
            [[getattr(listing, name) for name in columns] for listing in listings],
            [max(15, width) + 10, 20][: len(columns) - 1],
        )
    return 0


def _selected(cluster: ClusterClient, args: argparse.Namespace) -> list[str]:
    from moldau.client import groups

    if not args.all_groups:
        return sorted(set(args.group))
    listings = groups.list_groups(cluster, types=(groups.CLASSIC, groups.CONSUMER))
    return [listing.group for listing in listings if listing.protocol in groups.CONSUMER_PROTOCOLS]


def _describe(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    described = groups.describe_consumer_groups(cluster, _selected(cluster, args))
    failed = False
    answers = []
    for name, group in sorted(described.items()):
        if isinstance(group, KafkaError):
            failed = True
            warn(f"{_PREFIX}{group}")
        elif group.state == "Dead":  # what brokers before Kafka 4.0 say of a group they do not know
            failed = True
            warn(f"Error: Consumer group '{name}' does not exist.")
        elif args.json:
            answers.append(_as_json(cluster, args, group))
        else:
            _tell_state(group)
            _print_group(cluster, args, group)
    if args.json:
        print_json(answers)
    return 1 if failed else 0


def _tell_state(group: GroupDescription) -> None:
    if group.state == "Empty":
        warn(f"\nConsumer group '{group.group}' has no active members.")
    elif group.state in _REBALANCING:
        warn(f"\nWarning: Consumer group '{group.group}' is rebalancing.")


def _print_group(cluster: ClusterClient, args: argparse.Namespace, group: GroupDescription) -> None:
    if args.members:
        _print_members(group, verbose=args.verbose)
    elif args.state is not None:
        _print_state(group, verbose=args.verbose)
    else:
        _print_offsets(group.group, _offset_rows(cluster, group), verbose=args.verbose)


def _as_json(cluster: ClusterClient, args: argparse.Namespace, group: GroupDescription) -> dict[str, Any]:
    if args.members:
        return group_json(group, members=members_json(group))
    if args.state is not None:
        return group_json(group)
    return group_json(group, offsets=[row.as_json() for row in _offset_rows(cluster, group)])


class OffsetRow(NamedTuple):
    topic: str
    partition: int
    committed: CommittedOffset | None
    end_offset: int | None
    member: Member | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end_offset is None:
            return None
        return self.end_offset - self.committed.offset

    @property
    def leader_epoch(self) -> int | None:
        return None if self.committed is None or self.committed.leader_epoch < 0 else self.committed.leader_epoch

    def cells(self, *, verbose: bool) -> list[object]:
        return [
            self.topic,
            self.partition,
            *([self.leader_epoch] if verbose else []),
            None if self.committed is None else self.committed.offset,
            self.end_offset,
            self.lag,
            *((self.member.member_id, self.member.host, self.member.client_id) if self.member else (NOTHING,) * 3),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "leaderEpoch": self.leader_epoch,
            "currentOffset": None if self.committed is None else self.committed.offset,
            "logEndOffset": self.end_offset,
            "lag": self.lag,
            "consumerId": None if self.member is None else self.member.member_id,
            "host": None if self.member is None else self.member.host,
            "clientId": None if self.member is None else self.member.client_id,
        }


def _offset_rows(cluster: ClusterClient, group: GroupDescription) -> list[OffsetRow]:
    """Partitions of members first, of the busiest member before all; then those nobody reads at the moment."""
    from moldau.client import groups

    committed = groups.committed_offsets(cluster, group.group)
    owners: dict[TopicPartition, Member | None] = {
        tp: member
        for member in sorted(group.members, key=lambda member: -len(member.partitions))
        for tp in member.partitions
    }
    owners |= {tp: None for tp in sorted(committed) if tp not in owners}
    led = [tp for tp, leader in leaders(cluster, owners).items() if tp in owners and leader >= 0]
    ends = log_offsets(cluster, led, LATEST)
    return [OffsetRow(*tp, committed.get(tp), ends.get(tp), member) for tp, member in owners.items()]


def _print_offsets(group: str, rows: Sequence[OffsetRow], *, verbose: bool) -> None:
    if not rows:
        return
    epoch = ["LEADER-EPOCH"] if verbose else []
    headers = ["GROUP", "TOPIC", "PARTITION", *epoch, "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    print()
    print_columns(
        [*headers, "CONSUMER-ID", "HOST", "CLIENT-ID"],
        [[group, *row.cells(verbose=verbose)] for row in rows],
        [15, 15, 10, *([15] if verbose else []), 15, 15, 15, 15, 15],
    )


def _print_members(group: GroupDescription, *, verbose: bool) -> None:
    with_instance = any(member.instance_id for member in group.members)
    with_upgrade = {member.is_upgraded for member in group.members} >= {True, False}

    def chosen(always: list[Any], instance: Any, more: list[Any], upgrade: Any) -> list[Any]:
        return [
            *always[:2],
            *([instance] if with_instance else []),
            *always[2:],
            *(more if verbose else []),
            *([upgrade] if verbose and with_upgrade else []),
        ]

    def row(member: Member) -> list[Any]:
        return chosen(
            [group.group, member.member_id, member.host, member.client_id, len(member.partitions)],
            member.instance_id or "",
            [
                member.epoch,
                assignment_text(member.partitions),
                group.target_epoch,
                assignment_text(member.target_partitions),
            ],
            None if member.is_upgraded is None else str(member.is_upgraded).lower(),
        )

    print()
    print_columns(
        chosen(
            ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"],
            "GROUP-INSTANCE-ID",
            ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"],
            "UPGRADED",
        ),
        [row(member) for member in group.members],
        chosen([15, 15, 15, 15, 15], 17, [15, 20, 15, 20], 0)[:-1],
    )


def _print_state(group: GroupDescription, *, verbose: bool) -> None:
    epochs = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    row = [group.group, coordinator_text(group), group.assignor or None, group.state]
    print()
    print_columns(
        ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", *epochs, "#MEMBERS"],
        [[*row, *([group.epoch, group.target_epoch] if verbose else []), len(group.members)]],
        [15, 25, 20, 20, *([15, 25] if verbose else [])],
    )


def _of_other_types(cluster: ClusterClient, names: Sequence[str]) -> dict[str, KafkaError]:
    """The groups that are not consumer groups. Requests to delete them or to commit offsets would succeed otherwise."""
    from moldau.client import groups

    return {
        listing.group: KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {listing.group} is not a consumer group.")
        for listing in groups.list_groups(cluster)
        if listing.group in names and listing.type in (groups.SHARE, groups.STREAMS)
    }


def _delete(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    names = _selected(cluster, args)
    results: dict[str, KafkaError | None] = {**_of_other_types(cluster, names)}
    results |= groups.delete_groups(cluster, [name for name in names if name not in results])
    return print_deleted(results, args, "consumer")


def _reset_offsets(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    if not args.dry_run and not args.execute:
        warn(
            "WARN: No action will be performed as the --execute option is missing. Use --dry-run to hide this warning."
        )
    plan: dict[str, Offsets] = {}
    failed = False
    names = _selected(cluster, args)
    for error in _of_other_types(cluster, names).values():
        raise error
    for name, group in sorted(groups.describe_consumer_groups(cluster, names).items()):
        if isinstance(group, KafkaError) and group.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise group
        if not isinstance(group, KafkaError) and group.state not in ("Empty", "Dead"):
            failed = True
            warn(
                f"\nError: Assignments can only be reset if the group '{name}' is inactive, "
                f"but the current state is {group.state}."
            )
            continue
        plan[name] = _plan(cluster, args, name)
    if args.execute:  # only now: what cannot be planned for one group changes none
        failed_groups = [name for name, offsets in plan.items() if not _execute(cluster, name, offsets)]
        plan = {name: offsets for name, offsets in plan.items() if name not in failed_groups}
        failed = failed or bool(failed_groups)
    if args.export and not args.json:
        print(write_plan(plan, with_group=len(args.group) != 1), end="")
    else:
        print_plan(plan, args)
    return 1 if failed else 0


def _execute(cluster: ClusterClient, group: str, offsets: Offsets) -> bool:
    from moldau.client import groups

    try:
        raise_failed(groups.commit_offsets(cluster, group, offsets) if offsets else {})
    except KafkaError as error:
        warn(f"{_PREFIX}{error} (group '{group}')")
        return False
    return True


def _plan(cluster: ClusterClient, args: argparse.Namespace, group: str) -> Offsets:
    from moldau.client import groups

    def committed() -> Offsets:
        return {tp: value.offset for tp, value in groups.committed_offsets(cluster, group).items()}

    if args.from_file is not None:
        plan = read_plan(args.from_file, args.group)
        if group not in plan:
            warn(f"\nError: No reset plan for group {group} found")
        return within_logs(cluster, plan.get(group, {}))
    partitions = sorted(committed()) if args.all_topics else named_partitions(cluster, args.topic)
    return plan_reset(cluster, args, partitions, committed)


def _delete_offsets(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    (group,) = args.group
    partitions: list[TopicPartition] = []
    results: dict[TopicPartition, KafkaError | None] = {}
    for argument in args.topic:
        try:
            partitions += (
                named_partitions(cluster, [argument]) if ":" in argument else all_partitions(cluster, argument)
            )
        except KafkaError as error:
            results[TopicPartition(argument, -1)] = error
    if partitions:
        results |= groups.delete_offsets(cluster, group, partitions)
    failed = any(results.values())
    if args.json:
        print_json(_deleted_json(results))
        return 1 if failed else 0
    if failed:
        warn("\nError: Encountered some partition-level error, see the follow-up details.")
    else:
        print(f"Request succeeded for deleting offsets from group {group}.")
    print()
    print_columns(
        ("TOPIC", "PARTITION", "STATUS"),
        [
            (topic, None if partition < 0 else partition, "Successful" if error is None else f"Error: {error}")
            for (topic, partition), error in sorted(results.items())
        ],
        (15, 10),
    )
    return 1 if failed else 0


def _deleted_json(results: Mapping[TopicPartition, KafkaError | None]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": None if partition < 0 else partition,
            "error": None if error is None else error.message,
        }
        for (topic, partition), error in sorted(results.items())
    ]


_WORK = {
    "--list": _list,
    "--describe": _describe,
    "--delete": _delete,
    "--reset-offsets": _reset_offsets,
    "--delete-offsets": _delete_offsets,
}

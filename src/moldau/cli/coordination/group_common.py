"""What the commands around groups share: choosing groups, Kafka's columns, results of deleting and resetting."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import CommandParser, bold, print_json, run_with_cluster, warn
from moldau.errors import ConfigError, KafkaError

if TYPE_CHECKING:
    from moldau.cli.coordination.reset_offsets import Offsets
    from moldau.client.cluster import ClusterClient
    from moldau.client.groups import GroupDescription
    from moldau.wire.topic_partition import TopicPartition

NOTHING = "-"  # in a column that has no value
_TIMEOUT_MS = 30_000


def add_group_options(parser: CommandParser, kind: str) -> None:
    parser.add_connection()
    parser.add_command_config()
    parser.add_argument("--group", metavar="ID", action="append", default=[], help=f"the {kind} group; repeatable")
    parser.add_flag("--all-groups", f"all {kind} groups")
    parser.add_argument(
        "--topic",
        metavar="TOPIC[:0,1,…]",
        action="append",
        default=[],
        help="the topic, or some of its partitions; repeatable",
    )
    parser.add_flag("--all-topics", "with --reset-offsets: all topics for which the group has offsets")
    parser.add_flag("--members", "with --describe: show the members")
    parser.add_flag("--offsets", "with --describe: show the offsets (default)")
    parser.add_argument(
        "--state",
        metavar="STATE,…",
        nargs="?",
        const="",
        help="with --describe: show the state; with --list: show the states, or list only groups in these states",
    )
    parser.add_flag("--verbose", "with --describe: show more columns")
    parser.add_flag("--dry-run", "with --reset-offsets: show the new offsets without setting them")
    parser.add_flag("--execute", "with --reset-offsets: set the new offsets")
    parser.add_flag("--to-earliest", "reset to the earliest offset")
    parser.add_flag("--to-latest", "reset to the latest offset")
    parser.add_argument(
        "--to-datetime", metavar="TIME", help="reset to the first offset since YYYY-MM-DDThh:mm:ss.sss (UTC)"
    )
    parser.add_argument("--timeout", metavar="MS", type=int, default=_TIMEOUT_MS, help="timeout in milliseconds")
    parser.add_json()


def given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """The options that were given."""
    return [name for name in names if getattr(args, _field(name)) not in (None, False, [])]


def _field(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def check_group_options(
    parser: CommandParser, args: argparse.Namespace, actions: Sequence[str], scenarios: Sequence[str]
) -> None:
    """What Kafka's two commands check alike; `scenarios` are the ways to reset."""
    if len(given(args, actions)) != 1:
        parser.error(f"Command must include exactly one action: {', '.join(actions)}")
    for option in ("--members", "--offsets", "--verbose"):
        parser.allow_with(args, option, "--describe")
    parser.allow_with(args, "--state", "--describe", "--list")
    for option in ("--all-topics", "--dry-run", "--execute", *scenarios):
        parser.allow_with(args, option, "--reset-offsets")
    parser.allow_with(args, "--group", *(action for action in actions if action != "--list"))
    parser.allow_with(args, "--topic", "--reset-offsets", "--delete-offsets")
    if args.group and args.all_groups:
        parser.error("Option --group can't be used with option --all-groups")
    if args.describe:
        _check_describe(parser, args)
    if args.delete_offsets and not (len(args.group) == 1 and args.topic):
        parser.error("Option --delete-offsets takes the following options: one --group, --topic")
    if args.reset_offsets:
        if args.dry_run and args.execute:
            parser.error("Option --reset-offsets only accepts one of --execute and --dry-run")
        if len(given(args, scenarios)) != 1:
            parser.error(f"Option --reset-offsets requires exactly one of: {', '.join(scenarios)}")
        _check_times(parser, args)


def _check_times(parser: CommandParser, args: argparse.Namespace) -> None:
    from moldau.cli.coordination.reset_offsets import parse_datetime, parse_duration

    try:
        if args.to_datetime is not None:
            parse_datetime(args.to_datetime)
        if args.by_duration is not None:
            parse_duration(args.by_duration)
    except ConfigError as error:
        parser.error(str(error))


def _check_describe(parser: CommandParser, args: argparse.Namespace) -> None:
    if len(given(args, ("--members", "--offsets", "--state"))) > 1:
        parser.error("Option --describe takes at most one of these options: --members, --offsets, --state")
    if args.state:
        parser.error("Option --describe does not take a value for --state")


def require_groups(parser: CommandParser, args: argparse.Namespace, *actions: str) -> None:
    for action in given(args, actions):
        if not args.group and not args.all_groups:
            parser.error(f"Option {action} takes one of these options: --group, --all-groups")


def run_action(
    prog: str,
    args: argparse.Namespace,
    actions: Mapping[str, Callable[[ClusterClient, argparse.Namespace], int]],
    *,
    prefix: str,
) -> int:
    """Does what the one option of `actions` that is there asks for."""
    (action,) = given(args, actions)
    return run_with_cluster(prog, args, actions[action], prefix=prefix)


def parse_names(text: str, valid: Sequence[str], what: str) -> list[str]:
    """`stable, empty` in Kafka's own spelling; nothing for an empty text."""
    spelling = {name.lower(): name for name in valid}
    names = [part.strip().lower() for part in text.split(",")] if text else []
    if not spelling.keys() >= set(names):
        raise ConfigError(f"Invalid {what} list '{text}'. Valid {what}s are: {', '.join(valid)}")
    return [spelling[name] for name in names]


def print_columns(headers: Sequence[str], rows: Iterable[Sequence[object]], widths: Sequence[int]) -> None:
    """Kafka's way with tables: columns at least so wide, the last as long as it is."""
    lines = [[NOTHING if cell is None else str(cell) for cell in row] for row in rows]
    wide = [max(width, *(len(line[i]) for line in (headers, *lines))) for i, width in enumerate(widths)] + [0]

    def line(cells: Sequence[str]) -> str:
        return " ".join(cell.ljust(width) for cell, width in zip(cells, wide, strict=True)).rstrip()

    print(bold(line(headers)))
    for cells in lines:
        print(line(cells))


def assignment_text(partitions: Iterable[TopicPartition]) -> str | None:
    """`orders:0,1;payments:0`; None for no partition."""
    topics: dict[str, list[str]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items()) or None


def coordinator_text(group: GroupDescription) -> str:
    return f"{group.coordinator.host}:{group.coordinator.port}  ({group.coordinator.id})"


def group_json(group: GroupDescription, **more: Any) -> dict[str, Any]:
    coordinator = group.coordinator
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": {"id": coordinator.id, "host": coordinator.host, "port": coordinator.port},
        "groupEpoch": group.epoch,
        "targetAssignmentEpoch": group.target_epoch,
        "memberCount": len(group.members),
        **more,
    }


def members_json(group: GroupDescription) -> list[dict[str, Any]]:
    def places(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
        return [{"topic": topic, "partition": partition} for topic, partition in partitions]

    return [
        {
            "consumerId": member.member_id,
            "groupInstanceId": member.instance_id,
            "clientId": member.client_id,
            "host": member.host,
            "epoch": member.epoch,
            "assignment": places(member.partitions),
            "targetAssignment": places(member.target_partitions),
        }
        for member in group.members
    ]


def print_plan(plan: Mapping[str, Offsets], args: argparse.Namespace) -> None:
    rows = [
        (group, topic, partition, offset)
        for group, offsets in sorted(plan.items())
        for (topic, partition), offset in sorted(offsets.items())
    ]
    if args.json:
        names = ("group", "topic", "partition", "newOffset")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print()
        print_columns(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows, (15, 15, 10))


def raise_failed(results: Mapping[TopicPartition, KafkaError | None]) -> None:
    """The first error of a request that was to succeed as a whole, with its partition."""
    for (topic, partition), error in sorted(results.items()):
        if error is not None:
            raise KafkaError(error.code, f"partition {topic}-{partition}: {error}")


def print_deleted(results: Mapping[str, KafkaError | None], args: argparse.Namespace, kind: str) -> int:
    """How deleting groups went; the exit code."""
    deleted = ", ".join(f"'{group}'" for group, error in sorted(results.items()) if error is None)
    failed = {group: error for group, error in sorted(results.items()) if error is not None}
    if args.json:
        print_json(
            [{"group": group, "error": None if e is None else e.message} for group, e in sorted(results.items())]
        )
    elif not failed:
        print(f"Deletion of requested {kind} groups ({deleted}) was successful.")
    else:
        warn(f"\nError: Deletion of some {kind} groups failed:")
        for group, error in failed.items():
            warn(f"* Group '{group}' could not be deleted due to: {error}")
        if deleted:
            print(f"\nThese {kind} groups were deleted successfully: {deleted}")
    return 1 if failed else 0

"""`kafka-share-groups`: list, describe and delete share groups, reset and delete their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from moldau.cli.coordination.reset_offsets import named_partitions, plan_reset
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient
    from moldau.client.groups import GroupDescription

_ACTIONS = ("--list", "--describe", "--delete", "--reset-offsets", "--delete-offsets")
_SCENARIOS = ("--to-earliest", "--to-latest", "--to-datetime")
_STATES = ("Stable", "Empty", "Dead")
_PREFIX = "Error: Executing share group command failed due to "
_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --describe --group workers
{prog} --bootstrap-server localhost:9092 --reset-offsets --group g --all-topics --to-latest --dry-run"""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-share-groups") -> int:
    parser = _parser(prog)
    parser.set_defaults(by_duration=None, to_offset=None)  # by which only consumer groups can be reset
    args = parser.parse_args(argv)
    _check(parser, args)
    return run_action(prog, args, _WORK, prefix=_PREFIX)


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "List, describe and delete share groups, reset and delete offsets.", _EXAMPLE)
    parser.add_flag("--list", "list share groups")
    parser.add_flag("--describe", "show start offsets and lag, members, or the state")
    parser.add_flag("--delete", "delete groups that have no members")
    parser.add_flag("--reset-offsets", "reset the start offsets of a group that has no members")
    parser.add_flag("--delete-offsets", "delete the offsets of a group for topics")
    add_group_options(parser, "share")
    return parser


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    check_group_options(parser, args, _ACTIONS, _SCENARIOS)
    parser.require_connection(args)
    require_groups(parser, args, "--describe", "--delete")
    if args.reset_offsets:
        if len(args.group) != 1:
            parser.error("Option --reset-offsets takes the option: --group, once")
        if not args.dry_run and not args.execute:
            parser.error("Option --reset-offsets takes the option: --execute or --dry-run")
        if not args.topic and not args.all_topics:
            parser.error("Option --reset-offsets takes one of these options: --all-topics, --topic")


def _list(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    states = parse_names(args.state or "", _STATES, "state")
    listings = groups.list_groups(cluster, types=(groups.SHARE,), states=states)
    if args.json:
        print_json([listing._asdict() for listing in listings])
    elif args.state is None:
        for listing in listings:
            print(listing.group)
    else:
        print_columns(("GROUP", "STATE"), [(listing.group, listing.state) for listing in listings], (15,))
    return 0


def _selected(cluster: ClusterClient, args: argparse.Namespace) -> list[str]:
    from moldau.client import groups

    if not args.all_groups:
        return sorted(set(args.group))
    return [listing.group for listing in groups.list_groups(cluster, types=(groups.SHARE,))]


def _describe(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import share_groups

    failed = False
    answers = []
    for name, group in sorted(share_groups.describe_share_groups(cluster, _selected(cluster, args)).items()):
        if isinstance(group, KafkaError):
            failed = True
            warn(f"{_PREFIX}{group}")
        elif group.state == "Dead":
            failed = True
            warn(f"Error: Share group '{name}' does not exist.")
        elif args.json:
            answers.append(_as_json(cluster, args, group))
        else:
            _print_group(cluster, args, group)
    if args.json:
        print_json(answers)
    return 1 if failed else 0


def _print_group(cluster: ClusterClient, args: argparse.Namespace, group: GroupDescription) -> None:
    shows_members = args.members or args.state is not None
    if shows_members and group.state == "Empty":
        warn(f"\nShare group '{group.group}' has no active members.")
    if args.members:
        if group.members:
            _print_members(group, verbose=args.verbose)
    elif args.state is not None:
        _print_state(group, verbose=args.verbose)
    else:
        _print_offsets(cluster, group.group, verbose=args.verbose)


def _as_json(cluster: ClusterClient, args: argparse.Namespace, group: GroupDescription) -> dict[str, Any]:
    from moldau.client import share_groups

    if args.members:
        return group_json(group, members=members_json(group))
    if args.state is not None:
        return group_json(group)
    offsets = sorted(share_groups.share_offsets(cluster, group.group).items())
    return group_json(
        group,
        offsets=[
            {
                "topic": topic,
                "partition": partition,
                "leaderEpoch": None if at is None else at.leader_epoch,
                "startOffset": None if at is None else at.start_offset,
                "lag": None if at is None else at.lag,
            }
            for (topic, partition), at in offsets
        ],
    )


def _print_offsets(cluster: ClusterClient, group: str, *, verbose: bool) -> None:
    from moldau.client import share_groups

    rows = []
    for (topic, partition), at in sorted(share_groups.share_offsets(cluster, group).items()):
        epoch, start, lag = (NOTHING,) * 3 if at is None else (at.leader_epoch, at.start_offset, at.lag)
        rows.append([group, topic, partition, *([epoch] if verbose else []), start, lag])
    print()
    print_columns(
        ["GROUP", "TOPIC", "PARTITION", *(["LEADER-EPOCH"] if verbose else []), "START-OFFSET", "LAG"],
        rows,
        [15, 15, 10, *([13] if verbose else []), 13],
    )


def _print_members(group: GroupDescription, *, verbose: bool) -> None:
    rows = [
        [
            group.group,
            member.member_id,
            member.host,
            member.client_id,
            len(member.partitions),
            *([member.epoch] if verbose else []),
            assignment_text(member.partitions) or "",
        ]
        for member in sorted(group.members)
    ]
    epoch = ["MEMBER-EPOCH"] if verbose else []
    print()
    print_columns(
        ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", *epoch, "ASSIGNMENT"],
        rows,
        [15, 15, 15, 15, 12, *([13] if verbose else [])],
    )


def _print_state(group: GroupDescription, *, verbose: bool) -> None:
    epochs = ["GROUP-EPOCH", "ASSIGNMENT-EPOCH"] if verbose else []
    row = [group.group, coordinator_text(group), group.state]
    print()
    print_columns(
        ["GROUP", "COORDINATOR (ID)", "STATE", *epochs, "#MEMBERS"],
        [[*row, *([group.epoch, group.target_epoch] if verbose else []), len(group.members)]],
        [15, 25, 15, *([12, 17] if verbose else [])],
    )


def _delete(cluster: ClusterClient, args: argparse.Namespace) -> int:
    """Only share groups: the request would delete a group of any type."""
    from moldau.client import groups

    states = {listing.group: listing.state for listing in groups.list_groups(cluster, types=(groups.SHARE,))}
    results: dict[str, KafkaError | None] = {}
    for name in sorted(states) if args.all_groups else sorted(set(args.group)):
        if name not in states:
            results[name] = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group '{name}' is not a share group.")
        elif states[name] != "Empty":
            results[name] = KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Share group '{name}' is not EMPTY.")
        else:
            results[name] = None
    deletable = [name for name, error in results.items() if error is None]
    return print_deleted(results | groups.delete_groups(cluster, deletable), args, "share")


def _reset_offsets(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import share_groups

    (name,) = args.group
    group = share_groups.describe_share_groups(cluster, [name])[name]
    if isinstance(group, KafkaError):
        if group.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise group
    elif group.state not in ("Empty", "Dead"):
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"Share group '{name}' is not empty.")
    if args.topic:
        partitions = named_partitions(cluster, args.topic)
    else:
        partitions = sorted(share_groups.share_offsets(cluster, name))
    plan = plan_reset(cluster, args, partitions, dict)
    if args.execute and plan:
        raise_failed(share_groups.alter_share_offsets(cluster, name, plan))
    print_plan({name: plan}, args)
    return 0


def _delete_offsets(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import share_groups

    (name,) = args.group
    results = sorted(share_groups.delete_share_offsets(cluster, name, dict.fromkeys(args.topic)).items())
    if args.json:
        print_json([{"topic": topic, "error": None if error is None else error.message} for topic, error in results])
    else:
        print()
        print_columns(
            ("TOPIC", "STATUS"),
            [(topic, "Successful" if error is None else f"Error: {error}") for topic, error in results],
            (15,),
        )
    return 1 if any(error for _, error in results) else 0


_WORK = {
    "--list": _list,
    "--describe": _describe,
    "--delete": _delete,
    "--reset-offsets": _reset_offsets,
    "--delete-offsets": _delete_offsets,
}

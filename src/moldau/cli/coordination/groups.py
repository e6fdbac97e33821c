"""`kafka-groups`: groups of all types in one list."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.cli.common import CommandParser, print_json, run_with_cluster
from moldau.cli.coordination.group_common import given, print_columns

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient
    from moldau.client.groups import GroupListing

_TYPES = ("classic", "consumer", "share", "streams")
_WIDTH_MIN = 20
_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --list
{prog} --bootstrap-server localhost:9092 --list --share"""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-groups") -> int:
    parser = CommandParser(prog, "List groups of all types.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_flag("--list", "list the groups")
    parser.add_argument("--group-type", metavar="TYPE", help=f"only groups of this type: {', '.join(_TYPES)}")
    parser.add_argument("--protocol", metavar="NAME", help="only groups of this protocol")
    parser.add_flag("--consumer", "only consumer groups, including classic and simple ones")
    parser.add_flag("--share", "only share groups")
    parser.add_flag("--streams", "only streams groups")
    parser.add_json()
    args = parser.parse_args(argv)
    if not args.list:
        parser.error("Command must include exactly one action: --list")
    parser.require_connection(args)
    if args.group_type is not None and args.group_type.lower() not in _TYPES:
        parser.error(f"--group-type must be a valid group type: {', '.join(_TYPES)}")
    kinds = given(args, ("--consumer", "--share", "--streams"))
    if kinds and len(kinds) + len(given(args, ("--group-type", "--protocol"))) > 1:
        parser.error(f"Option {kinds[0]} can't be used with other filters")

    return run_with_cluster(prog, args, _list, prefix="Error while executing groups command : ")


def _list(cluster: ClusterClient, args: argparse.Namespace) -> int:
    from moldau.client import groups

    listings = [listing for listing in groups.list_groups(cluster) if is_wanted(listing, args)]
    if args.json:
        print_json([listing._asdict() for listing in listings])
        return 0
    rows = [(listing.group, listing.type, listing.protocol) for listing in listings]
    width = max([_WIDTH_MIN, *(len(cell) for row in rows for cell in row)])
    print_columns(("GROUP", "TYPE", "PROTOCOL"), rows, (width, width))
    return 0


def is_wanted(listing: GroupListing, args: argparse.Namespace) -> bool:
    kind = listing.type.lower()
    if args.consumer:
        return listing.protocol in ("consumer", "") or kind == "consumer"
    if args.share or args.streams:
        return kind == ("share" if args.share else "streams")
    return (args.group_type is None or kind == args.group_type.lower()) and (
        args.protocol is None or listing.protocol == args.protocol
    )

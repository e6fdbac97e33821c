"""`kafka-metadata-quorum`: who keeps the cluster's metadata, and how far the others have read it.

In Kafka that is a quorum of controllers. Here the metadata lies in a folder or in ZooKeeper, and every broker can
become the controller that writes it: they stand as the voters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from moldau.cli.common import CommandParser, print_tabbed, run_with_cluster

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient
    from moldau.client.cluster_admin import Quorum, QuorumReplica

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 describe --status
{prog} --bootstrap-server localhost:9092 describe --replication --human-readable"""
_HEADERS = ("NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status")


def main(argv: Sequence[str] | None = None, prog: str = "kafka-metadata-quorum") -> int:
    parser = CommandParser(prog, "Describe the controller and how far each broker has read the metadata.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_argument("command", nargs="?", metavar="describe", choices=["describe"], help="the only subcommand")
    parser.add_flag("--status", "a summary")
    parser.add_flag("--replication", "show each replica and its lag")
    parser.add_flag("--human-readable", "with --replication: show times as milliseconds ago")
    args = parser.parse_args(argv)
    parser.require_connection(args)
    if args.command is None:
        parser.error("Missing sub-command: describe")
    if args.status == args.replication:
        words = "Only one of" if args.status else "One of"
        parser.error(f"{words} --status or --replication must be specified with describe sub-command")
    parser.allow_with(args, "--human-readable", "--replication")

    return run_with_cluster(prog, args, _describe)


def _describe(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client.cluster_admin import describe_quorum

    quorum = describe_quorum(cluster)
    if args.status:
        _print_status(quorum, cluster.metadata(()).cluster_id)
    else:
        _print_replication(quorum, is_human=args.human_readable)


def _print_status(quorum: Quorum, cluster_id: str | None) -> None:
    leader = _leader(quorum)
    slowest = min(quorum.voters, key=lambda voter: voter.log_end_offset, default=leader)
    lag_ms = 0
    if slowest != leader:
        known = slowest.last_caught_up_ms >= 0 and leader.last_caught_up_ms >= 0
        lag_ms = leader.last_caught_up_ms - slowest.last_caught_up_ms if known else -1
    for name, value in (
        ("ClusterId", cluster_id),
        ("LeaderId", quorum.leader_id),
        ("LeaderEpoch", quorum.leader_epoch),
        ("HighWatermark", quorum.high_watermark),
        ("MaxFollowerLag", leader.log_end_offset - slowest.log_end_offset),
        ("MaxFollowerLagTimeMs", lag_ms),
        ("CurrentVoters", _listed(quorum, quorum.voters)),
        ("CurrentObservers", _listed(quorum, quorum.observers)),
    ):
        print(f"{name + ':':<24}{value}")


def _listed(quorum: Quorum, replicas: Iterable[QuorumReplica]) -> str:
    return f"[{', '.join(_as_text(quorum, replica) for replica in replicas)}]"


def _as_text(quorum: Quorum, replica: QuorumReplica) -> str:
    from moldau.wire.uuids import ZERO_UUID, uuid_to_text

    fields = [f'"id": {replica.id}']
    if replica.directory_id != ZERO_UUID:
        fields.append(f'"directoryId": "{uuid_to_text(replica.directory_id)}"')
    endpoints = [f'"{name}://{host}:{port}"' for name, host, port in quorum.endpoints.get(replica.id, ())]
    if endpoints:
        fields.append(f'"endpoints": [{", ".join(endpoints)}]')
    return "{" + ", ".join(fields) + "}"


def _print_replication(quorum: Quorum, *, is_human: bool) -> None:
    from moldau.wire.uuids import uuid_to_text

    leader = _leader(quorum)
    followers = [voter for voter in quorum.voters if voter.id != quorum.leader_id]
    now_ms = int(time.time() * 1000)

    def moment(ms: int) -> str:
        return f"{max(0, now_ms - ms)} ms ago" if is_human and ms >= 0 else str(ms)

    rows = [
        (
            each.id,
            uuid_to_text(each.directory_id),
            each.log_end_offset,
            leader.log_end_offset - each.log_end_offset,
            moment(each.last_fetch_ms),
            moment(each.last_caught_up_ms),
            status,
        )
        for status, replicas in (("Leader", [leader]), ("Follower", followers), ("Observer", quorum.observers))
        for each in replicas
    ]
    print_tabbed(_HEADERS, rows)


def _leader(quorum: Quorum) -> QuorumReplica:
    return next(voter for voter in quorum.voters if voter.id == quorum.leader_id)

"""`kafka-log-dirs`: which partitions lie in which directory of which broker, and how large they are."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import CommandParser, print_json, run_with_cluster
from moldau.errors import ConfigError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.client.admin import LogDir
    from moldau.client.cluster import ClusterClient

_EXAMPLE = "{prog} --bootstrap-server localhost:9092 --describe --topic-list orders"


def main(argv: Sequence[str] | None = None, prog: str = "kafka-log-dirs") -> int:
    parser = CommandParser(prog, "Show the log directories of brokers as JSON.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_flag("--describe", "describe the log directories")
    parser.add_argument("--topic-list", metavar="T1,T2", default="", help="only these topics (default: all)")
    parser.add_argument("--broker-list", metavar="0,1", default="", help="only these brokers (default: all)")
    parser.add_flag("--json", "print only the JSON, without the two lines before it")
    args = parser.parse_args(argv)
    parser.require_connection(args)
    if not args.describe:
        parser.error("Missing required argument --describe")
    return run_with_cluster(prog, args, _print)


def _print(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client import admin

    topics = {name for name in args.topic_list.split(",") if name}
    brokers = _brokers(cluster, args.broker_list)
    if not args.json:
        print("Querying brokers for log directories information")
    answer = {
        "brokers": [
            {
                "broker": broker,
                "logDirs": [_as_json(d, topics) for d in admin.describe_log_dirs(cluster, broker)],
            }
            for broker in brokers
        ],
        "version": 1,
    }
    if args.json:
        print_json(answer)
    else:
        print(f"Received log directory information from brokers {','.join(map(str, brokers))}")
        print(json.dumps(answer, separators=(",", ":")))


def _brokers(cluster: ClusterClient, text: str) -> list[int]:
    existing = sorted(cluster.brokers())
    try:
        wanted = sorted({int(number) for number in text.split(",") if number})
    except ValueError:
        raise ConfigError(f"--broker-list {text}: expected broker ids, for example 0,1,2") from None
    missing = [broker for broker in wanted if broker not in existing]
    if missing:
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"The given brokers do not exist from --broker-list: {','.join(map(str, missing))}. "
            f"Current existent brokers: {','.join(map(str, existing))}",
        )
    return wanted or existing


def _as_json(log_dir: LogDir, topics: set[str]) -> dict[str, Any]:
    return {
        "partitions": [
            {
                "partition": f"{p.topic}-{p.partition}",
                "size": p.size_bytes,
                "offsetLag": p.offset_lag,
                "isFuture": p.is_future,
            }
            for p in sorted(log_dir.partitions)
            if not topics or p.topic in topics
        ],
        "error": None if log_dir.error is ErrorCode.NONE else log_dir.error.name,
        "logDir": log_dir.path,
    }

"""`kafka-delete-records`: forget the records of partitions before given offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from moldau.cli.common import CommandParser, connect, print_json, run
from moldau.errors import ConfigError, KafkaError
from moldau.wire.topic_partition import TopicPartition

_EXAMPLE = """\
echo '{{"partitions": [{{"topic": "orders", "partition": 0, "offset": 42}}], "version": 1}}' > offsets.json
{prog} --bootstrap-server localhost:9092 --offset-json-file offsets.json"""


def main(argv: Sequence[str] | None = None, prog: str = "kafka-delete-records") -> int:
    parser = CommandParser(prog, "Delete the records before an offset; -1 deletes all of them.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_argument("--offset-json-file", metavar="FILE", help="JSON file with the offset of each partition")
    parser.add_json()
    args = parser.parse_args(argv)
    parser.require_connection(args)
    parser.require(args, "--offset-json-file")

    def work() -> int:
        from moldau.client import admin

        offsets = read_offsets(args.offset_json_file)
        with connect(args) as cluster:
            if not args.json:
                print("Executing records delete operation")
            results = sorted(admin.delete_records(cluster, offsets).items())
        failed = any(isinstance(result, KafkaError) for _, result in results)
        if args.json:
            print_json([_as_json(topic, partition, result) for (topic, partition), result in results])
        else:
            print("Records delete operation completed:")
            for (topic, partition), result in results:
                kind = "error" if isinstance(result, KafkaError) else "low_watermark"
                print(f"partition: {topic}-{partition}\t{kind}: {result}")
        return 1 if failed else 0

    return run(prog, work)


def read_offsets(path: str) -> dict[TopicPartition, int]:
    """The file's offsets, one per partition; ConfigError says what is wrong with the file."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    version = document.get("version", 1) if isinstance(document, dict) else 1
    if version != 1:
        raise ConfigError(f"{path}: version {version} is not supported; use 1")
    offsets: dict[TopicPartition, int] = {}
    try:
        for entry in document["partitions"]:
            key = TopicPartition(str(entry["topic"]), int(entry["partition"]))
            if key in offsets:
                raise ConfigError(f"Offset json file contains duplicate topic partitions: {key}")
            offsets[key] = int(entry["offset"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f'{path}: expected {{"partitions": [{{"topic": …, "partition": …, "offset": …}}]}}: {error!r}'
        ) from error
    return offsets


def _as_json(topic: str, partition: int, result: int | KafkaError) -> dict[str, Any]:
    answer: dict[str, Any] = {"topic": topic, "partition": partition}
    if isinstance(result, KafkaError):
        return answer | {"error": result.message}
    return answer | {"lowWatermark": result}

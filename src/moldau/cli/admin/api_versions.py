"""`kafka-broker-api-versions`: which requests each broker serves, and which version would be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import CommandParser, connect, print_json, run
from moldau.errors import KafkaError

if TYPE_CHECKING:
    from moldau.client.cluster import Node
    from moldau.client.connection import Connection

_EXAMPLE = "{prog} --bootstrap-server localhost:9092"


def main(argv: Sequence[str] | None = None, prog: str = "kafka-broker-api-versions") -> int:
    parser = CommandParser(prog, "Show the requests and versions that each broker supports.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_json()
    args = parser.parse_args(argv)
    parser.require_connection(args)

    def work() -> int:
        answer = []
        failed = False
        with connect(args) as cluster:
            for broker in cluster.brokers().values():
                rack = broker.rack or "null"
                # Metadata names live brokers only, so none of these is fenced.
                name = f"{broker.host}:{broker.port} (id: {broker.id} rack: {rack} isFenced: false)"
                try:
                    connection = cluster.broker(broker.id)
                except KafkaError as error:
                    failed = True
                    answer.append({"id": broker.id, "error": error.message})
                    if not args.json:
                        print(f"{name} -> ERROR: {error}")
                    continue
                answer.append(_as_json(broker, connection))
                if not args.json:
                    print(f"{name} -> (\n\t" + ",\n\t".join(_lines(connection)) + "\n)")
        if args.json:
            print_json(answer)
        return 1 if failed else 0

    return run(prog, work)


def _lines(connection: Connection) -> list[str]:
    from moldau.wire.apis import APIS

    lines = []
    for key in sorted({*connection.versions, *APIS}):
        name = APIS[key].name if key in APIS else "UNKNOWN"
        if key not in connection.versions:
            lines.append(f"{name}({key}): UNSUPPORTED")
            continue
        low, high = connection.versions[key]
        text = f"{name}({key}): " + (f"{low}" if low == high else f"{low} to {high}")
        if key in APIS:
            version = connection.version_of(key)
            text += f" [usable: {version}]" if version is not None else f" [unusable: {_reason(key, low)}]"
        lines.append(text)
    return lines


def _reason(key: int, low: int) -> str:
    from moldau.wire.apis import APIS

    return "node too new" if APIS[key].max_version < low else "node too old"


def _as_json(broker: Node, connection: Connection) -> dict[str, Any]:
    from moldau.wire.apis import APIS

    return {
        "id": broker.id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "apis": [
            {
                "key": key,
                "name": APIS[key].name if key in APIS else None,
                "min": low,
                "max": high,
                "usable": connection.version_of(key) if key in APIS else None,
            }
            for key, (low, high) in sorted(connection.versions.items())
        ],
    }

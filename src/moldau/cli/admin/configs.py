"""`kafka-configs`: describe and alter the configuration of topics, brokers and groups.

Quotas and credentials (users, clients, ips) are not here yet.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import (
    CommandParser,
    at_terminal,
    bold,
    load_properties,
    print_json,
    print_table,
    run_with_cluster,
)
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.constants import ResourceType

if TYPE_CHECKING:
    from moldau.client.admin import Resource
    from moldau.client.cluster import ClusterClient
    from moldau.config.entries import ConfigEntry

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --alter --topic orders --add-config retention.ms=3600000
{prog} --bootstrap-server localhost:9092 --describe --entity-type brokers --entity-name 0 --all
{prog} --bootstrap-server localhost:9092 --alter --group workers --add-config share.auto.offset.reset=earliest"""
_TYPES = ("topics", "brokers", "groups")
_LATER_TYPES = ("users", "clients", "ips", "broker-loggers", "client-metrics")
_RESOURCE_TYPES = {"topics": ResourceType.TOPIC, "brokers": ResourceType.BROKER, "groups": ResourceType.GROUP}
_OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"


def main(argv: Sequence[str] | None = None, prog: str = "kafka-configs") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    entity_type, entity_name = _check(parser, args)

    def work(cluster: ClusterClient, args: argparse.Namespace) -> None:
        if args.alter:
            _alter(cluster, args, entity_type, entity_name or "")
        else:
            _describe(cluster, args, entity_type, entity_name)

    return run_with_cluster(prog, args, work, prefix="Error while executing config command : ")


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Describe or alter the configuration of topics, brokers and groups.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_flag("--describe", "show the configuration")
    parser.add_flag("--alter", "change the configuration")
    parser.add_flag("--all", "describe all keys, not only those set on the entity")
    parser.add_argument(
        "--entity-type",
        metavar="TYPE",
        action="append",
        default=[],
        help=f"the entity type: {', '.join(_TYPES)}",
    )
    parser.add_argument(
        "--entity-name", metavar="NAME", dest="entity_names", action="append", help="topic name, broker id or group id"
    )
    parser.add_argument(
        "--entity-default",
        dest="entity_names",
        action="append_const",
        const="",
        help="the default for all brokers, instead of a name",
    )
    parser.add_argument("--topic", metavar="NAME", help="short for --entity-type topics --entity-name NAME")
    parser.add_argument("--broker", metavar="ID", help="short for --entity-type brokers --entity-name ID")
    parser.add_argument("--group", metavar="ID", help="short for --entity-type groups --entity-name ID")
    parser.add_flag("--broker-defaults", "short for --entity-type brokers --entity-default")
    parser.add_argument(
        "--add-config", metavar="K1=V1,K2=[V1,V2]", help="keys to set; put [] around values that contain commas"
    )
    parser.add_argument("--add-config-file", metavar="FILE", help="properties file with the keys to set")
    parser.add_argument("--delete-config", metavar="K1,K2", action="append", default=[], help="keys to unset")
    parser.add_json()
    return parser


def _check(parser: CommandParser, args: argparse.Namespace) -> tuple[str, str | None]:
    """The entity's type and name; no name means all of that type, an empty one their default."""
    if args.alter == args.describe:
        parser.error("Command must include exactly one action: --describe, --alter")
    parser.require_connection(args)
    entity_type, name = _entity(parser, args)
    if entity_type == "brokers" and name and not name.isdigit():
        parser.error(f"The entity name for brokers must be a valid integer broker id, but it is: {name}")
    if name == "" and entity_type != "brokers":
        parser.error(f"--entity-default must not be specified with {entity_type}")
    changes = bool(args.add_config or args.add_config_file or args.delete_config)
    if args.describe and changes:
        parser.error("--add-config, --add-config-file and --delete-config can be used only with --alter")
    if args.alter:
        if name is None:
            parser.error(f"An entity name must be specified with --alter of {entity_type}")
        if args.add_config and args.add_config_file:
            parser.error("Only one of --add-config or --add-config-file must be specified")
        if not changes:
            parser.error("At least one of --add-config, --add-config-file, or --delete-config is required")
    return entity_type, name


def _entity(parser: CommandParser, args: argparse.Namespace) -> tuple[str, str | None]:
    short = [
        ("topics", args.topic),
        ("brokers", args.broker),
        ("groups", args.group),
        ("brokers", "" if args.broker_defaults else None),
    ]
    given = [(kind, name) for kind, name in short if name is not None]
    names = args.entity_names or []
    if given and (args.entity_type or names):
        parser.error("--entity-{type,name,default} cannot be used together with --topic, --broker, --group")
    if len(given) + len(args.entity_type) != 1 or len(names) > 1:
        parser.error("Exactly one entity type and at most one entity name must be specified")
    kind, name = given[0] if given else (args.entity_type[0], names[0] if names else None)
    if kind in _LATER_TYPES:
        parser.error(f"Entity type {kind} is not supported yet; use one of {', '.join(_TYPES)}")
    if kind not in _TYPES:
        parser.error(f"Invalid entity type {kind}, the entity type must be one of {', '.join(_TYPES)}")
    return kind, name


def parse_added(text: str) -> dict[str, str]:
    """`k1=v1,k2=[a,b]` as a dict: commas and equal signs inside [] belong to the value."""
    added = {}
    for pair in re.split("," + _OUTSIDE_BRACKETS, text):
        parts = re.split(r"\s*=\s*" + _OUTSIDE_BRACKETS, pair)
        if len(parts) != 2:
            raise ConfigError(
                "Invalid entity config: all configs to be added must be in the format "
                f'"key=val" or "key=[val1,val2]", but there is "{pair}"'
            )
        added[parts[0].strip()] = parts[1].replace("[", "").replace("]", "").strip()
    return added


def _alter(cluster: ClusterClient, args: argparse.Namespace, entity_type: str, name: str) -> None:
    from moldau.client import admin

    added = parse_added(args.add_config) if args.add_config else load_properties(args.add_config_file)
    for key in added:
        if not re.fullmatch(r"[a-zA-Z0-9._-]*", key):
            raise ConfigError(f"Invalid character found for config key: {key}")
    deleted = [key.strip() for keys in args.delete_config for key in keys.split(",")]
    resource = _resource(entity_type, name)
    if deleted:
        present = {entry.name for entry in _dynamic(resource, admin.describe_configs(cluster, [resource])[resource])}
        missing = [key for key in deleted if key not in present]
        if missing:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid config(s): {','.join(missing)}")
    admin.alter_configs(cluster, resource, set_values=added, delete=deleted)
    if args.json:
        print_json({"entityType": entity_type, "entityName": name, "set": added, "deleted": deleted})
    elif name:
        print(f"Completed updating config for {entity_type[:-1]} {name}.")
    else:
        print(f"Completed updating default config for {entity_type} in the cluster.")


def _describe(cluster: ClusterClient, args: argparse.Namespace, entity_type: str, name: str | None) -> None:
    from moldau.client import admin

    known = _known(cluster, entity_type)
    # A group can be configured before it is there, and has the broker's values until then.
    if name and name not in known and entity_type != "groups":
        message = f"The {entity_type[:-1]} '{name}' doesn't exist and doesn't have dynamic config."
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    everything = [*known, ""] if entity_type == "brokers" else known
    names = everything if name is None else [name]
    resources = [_resource(entity_type, each) for each in names]
    described = admin.describe_configs(cluster, resources, synonyms=True) if resources else {}
    answer = []
    for resource in resources:
        entries = described[resource]
        shown = sorted(entries if args.all else _dynamic(resource, entries), key=lambda entry: entry.name)
        if args.json:
            answer.append(_as_json(entity_type, resource, shown))
        else:
            _print(entity_type, resource, shown, everything=args.all)
    if args.json:
        print_json(answer)


def _known(cluster: ClusterClient, entity_type: str) -> list[str]:
    from moldau.client import admin

    if entity_type == "topics":
        return sorted(cluster.metadata().topics)
    if entity_type == "groups":
        return sorted(admin.list_config_resources(cluster, ResourceType.GROUP))
    return [str(broker_id) for broker_id in cluster.brokers()]


def _resource(entity_type: str, name: str) -> Resource:
    from moldau.client.admin import Resource

    return Resource(_RESOURCE_TYPES[entity_type], name)


def _dynamic(resource: Resource, entries: list[ConfigEntry]) -> list[ConfigEntry]:
    """What was set on this very resource, not inherited from a file or a default."""
    from moldau.config.entries import ConfigSource

    if resource.type is ResourceType.TOPIC:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    elif resource.type is ResourceType.GROUP:
        source = ConfigSource.DYNAMIC_GROUP_CONFIG
    elif resource.name:
        source = ConfigSource.DYNAMIC_BROKER_CONFIG
    else:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [entry for entry in entries if entry.source is source]


def _print(entity_type: str, resource: Resource, entries: list[ConfigEntry], *, everything: bool) -> None:
    if resource.name:
        kind = "All" if everything else "Dynamic"
        print(bold(f"{kind} configs for {entity_type[:-1]} {resource.name} are:"))
    else:
        print(bold(f"Default configs for {entity_type} in the cluster are:"))
    if at_terminal():
        print_table(("Name", "Value", "Source"), [(e.name, _text(e.value), e.source.name) for e in entries])
        return
    for entry in entries:
        synonyms = ", ".join(f"{s.source.name}:{s.name}={_text(s.value)}" for s in entry.synonyms)
        sensitive = "true" if entry.is_sensitive else "false"
        print(f"  {entry.name}={_text(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}")


def _text(value: str | None) -> str:
    return "null" if value is None else value


def _as_json(entity_type: str, resource: Resource, entries: list[ConfigEntry]) -> dict[str, Any]:
    return {
        "entityType": entity_type,
        "entityName": resource.name,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": entry.source.name,
                "sensitive": entry.is_sensitive,
                "readOnly": entry.read_only,
                "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms],
            }
            for entry in entries
        ],
    }

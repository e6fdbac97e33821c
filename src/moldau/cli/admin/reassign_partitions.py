"""`kafka-reassign-partitions`: propose, start, watch and cancel the moving of replicas between brokers.

A move under a throttle leaves the throttle behind: `--verify` takes it off once nothing moves any more.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from moldau.cli.admin.reassignment_json import (
    Move,
    Plan,
    Replica,
    check_executable,
    format_plan,
    names,
    parse_broker_list,
    parse_plan,
    parse_topics,
    throttled_replicas,
)
from moldau.cli.common import CommandParser, load_text, run_with_cluster
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.constants import ResourceType
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from moldau.client.cluster import ClusterClient
    from moldau.client.cluster_admin import Reassignment

_EXAMPLE = """\
{prog} --bootstrap-server b:9092 --generate --topics-to-move-json-file t.json --broker-list 1,2
{prog} --bootstrap-server b:9092 --execute --reassignment-json-file plan.json --throttle 50000000
{prog} --bootstrap-server b:9092 --verify --reassignment-json-file plan.json"""

_RATE_KEYS = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_LOG_DIR_RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
_REPLICA_KEYS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_LOG_DIR_RETRY_S = 0.1

# What each action needs, and what it allows beside that.
_NEEDED = {
    "--generate": ("--topics-to-move-json-file", "--broker-list"),
    "--execute": ("--reassignment-json-file",),
    "--verify": ("--reassignment-json-file",),
    "--cancel": ("--reassignment-json-file",),
    "--list": (),
}
_ALLOWED = {
    "--topics-to-move-json-file": ("--generate",),
    "--broker-list": ("--generate",),
    "--disable-rack-aware": ("--generate",),
    "--reassignment-json-file": ("--execute", "--verify", "--cancel"),
    "--throttle": ("--execute",),
    "--replica-alter-log-dirs-throttle": ("--execute",),
    "--additional": ("--execute",),
    "--disallow-replication-factor-change": ("--execute",),
    "--preserve-throttles": ("--verify", "--cancel"),
    "--timeout": ("--execute", "--cancel"),
}


def main(argv: Sequence[str] | None = None, prog: str = "kafka-reassign-partitions") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    work = parser.choose(
        args,
        {"--generate": _generate, "--execute": _execute, "--verify": _verify, "--cancel": _cancel, "--list": _list},
    )
    _check(parser, args)
    # Kafka's --timeout is for the log directories only, not for the questions to the cluster.
    args.move_timeout_ms, args.timeout = 10_000 if args.timeout is None else args.timeout, None
    return run_with_cluster(prog, args, work, prefix="Error: ")


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Move replicas of partitions between brokers.", _EXAMPLE)
    parser.add_connection()
    parser.add_command_config()
    parser.add_flag("--generate", "propose a reassignment for the partitions of topics, without executing it")
    parser.add_flag("--execute", "start moving")
    parser.add_flag("--verify", "show the progress; when it is complete, remove the throttle")
    parser.add_flag("--cancel", "cancel the reassignment and restore the original replicas")
    parser.add_flag("--list", "list the reassignments in progress")
    parser.add_argument(
        "--reassignment-json-file", metavar="FILE", help="JSON file with the partitions and their new replicas"
    )
    parser.add_argument(
        "--topics-to-move-json-file", metavar="FILE", help="JSON file with the topics to propose a reassignment for"
    )
    parser.add_argument("--broker-list", metavar="1,2,3", help="brokers that may get replicas")
    parser.add_flag("--disable-rack-aware", "ignore racks in the proposal")
    parser.add_argument(
        "--throttle", metavar="BYTES/S", type=int, help="limit on the bytes per second that move between brokers"
    )
    parser.add_argument(
        "--replica-alter-log-dirs-throttle",
        metavar="BYTES/S",
        type=int,
        help="limit on the bytes per second that move between log directories",
    )
    parser.add_argument(
        "--timeout",
        metavar="MS",
        type=int,
        help="how long to wait for moves between log directories to start (default: 10000)",
    )
    parser.add_flag("--additional", "add to a reassignment in progress, or change its throttle")
    parser.add_flag("--preserve-throttles", "do not change the throttles")
    parser.add_flag("--disallow-replication-factor-change", "reject changes of the replication factor")
    return parser


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    parser.require_connection(args)
    parser.require(args, *parser.choose(args, _NEEDED))
    for option, actions in _ALLOWED.items():
        parser.allow_with(args, option, *actions)


def _generate(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client.cluster_admin import describe_cluster

    brokers = parse_broker_list(args.broker_list)
    topics = parse_topics(load_text(args.topics_to_move_json_file))
    current = _assignment(cluster, topics)
    racks = {each.id: each.rack for each in describe_cluster(cluster).members if each.id in brokers}
    if args.disable_rack_aware:
        racks = dict.fromkeys(racks)
    elif None in racks.values() and any(racks.values()):
        raise ConfigError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    proposed = _proposed(current, racks)
    print(f"Current partition replica assignment\n{format_plan(current, _log_dirs(cluster, current))}\n")
    print(f"Proposed partition reassignment configuration\n{format_plan(proposed, {})}")


def _proposed(
    current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None]
) -> dict[TopicPartition, Sequence[int]]:
    """As the controller would place the topics if they were new, beginning anywhere."""
    from moldau.metadata.placement import UsableBroker, place

    brokers = [UsableBroker(broker, rack) for broker, rack in sorted(racks.items())]
    proposed: dict[TopicPartition, Sequence[int]] = {}
    for topic in sorted({topic for topic, _ in current}):
        old = [ids for (name, _), ids in sorted(current.items()) if name == topic]
        placed = place(brokers, random.randrange(len(brokers) or 1), len(old), len(old[0]))
        proposed.update({TopicPartition(topic, index): ids for index, ids in enumerate(placed)})
    return proposed


def _execute(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client.cluster_admin import alter_reassignments, list_reassignments

    plan = parse_plan(load_text(args.reassignment_json_file))
    check_executable(plan)
    moving = list_reassignments(cluster)
    if moving and not args.additional:
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            "Cannot execute because there is an existing partition assignment.  Use --additional to override this "
            "and create a new partition assignment in addition to the existing one. The --additional flag can also "
            "be used to change the throttle by resubmitting the current reassignment.",
        )
    unknown = {broker for ids in plan.replicas.values() for broker in ids} - set(cluster.brokers())
    if unknown:
        raise ConfigError(f"Unknown broker id {min(unknown)}")
    current = _current(cluster, plan)
    print(
        f"Current partition replica assignment\n\n{format_plan(current, _log_dirs(cluster, current))}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    _throttle(cluster, args, plan, _moves(moving, plan, current))
    errors = alter_reassignments(
        cluster, plan.replicas, allow_replication_factor_change=not args.disallow_replication_factor_change
    )
    _raise_all("Error reassigning partition(s):", errors)
    print(f"Successfully started partition reassignment{_s(plan.replicas)} for {names(plan.replicas)}")
    _move_log_dirs(cluster, plan.log_dirs, args.move_timeout_ms)


def _verify(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client.cluster_admin import list_reassignments

    plan = parse_plan(load_text(args.reassignment_json_file))
    moving = list_reassignments(cluster)
    topics = cluster.metadata(sorted({topic for topic, _ in plan.replicas})).topics
    current = {(t.name, p.partition): list(p.replicas) for t in topics.values() for p in t.partitions}
    print("Status of partition reassignment:")
    for partition, target in sorted(plan.replicas.items()):
        print(_state(partition, target, current.get(partition, []), is_moving=partition in moving))
    is_moving = _print_log_dir_states(cluster, plan.log_dirs)
    if not moving and not is_moving and not args.preserve_throttles:
        _clear_throttles(cluster, plan)


def _state(partition: TopicPartition, target: Sequence[int], current: Sequence[int], *, is_moving: bool) -> str:
    name = names([partition])
    if is_moving:
        return f"Reassignment of partition {name} is still in progress."
    if list(target) == list(current):
        return f"Reassignment of partition {name} is completed."
    return (
        f"There is no active reassignment of partition {name}, but replica set is {_ids(current)} "
        f"rather than {_ids(target)}."
    )


def _cancel(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client.cluster_admin import alter_reassignments, list_reassignments

    plan = parse_plan(load_text(args.reassignment_json_file))
    found = list_reassignments(cluster, plan.replicas)
    moving = [partition for partition, each in found.items() if each.adding or each.removing]
    if moving:
        errors = alter_reassignments(cluster, dict.fromkeys(moving))
        _raise_all(f"Error cancelling partition reassignment{_s(errors)} for:", errors)
        print(f"Successfully cancelled partition reassignment{_s(moving)} for: {names(moving)}")
    else:
        print("None of the specified partition reassignments are active.")
    states = _log_dir_states(cluster, plan.log_dirs)
    back = {replica: now for replica, (now, future) in states.items() if future is not None and now is not None}
    if back:
        _move_log_dirs(cluster, back, args.move_timeout_ms)
    else:
        print("None of the specified partition moves are active.")
    if not args.preserve_throttles:
        _clear_throttles(cluster, plan)


def _list(cluster: ClusterClient, args: argparse.Namespace) -> None:
    from moldau.client.cluster_admin import list_reassignments

    moving = list_reassignments(cluster)
    print("Current partition reassignments:" if moving else "No partition reassignments found.")
    for partition, each in sorted(moving.items()):
        adding = f" adding: {_ids(each.adding)}." if each.adding else ""
        removing = f" removing: {_ids(each.removing)}." if each.removing else ""
        print(f"{names([partition])}: replicas: {_ids(each.replicas)}.{adding}{removing}")


# -- what there is now


def _assignment(cluster: ClusterClient, topics: Iterable[str]) -> dict[TopicPartition, list[int]]:
    wanted = sorted(set(topics))
    found = cluster.metadata(wanted).topics
    missing = [name for name in wanted if name not in found or found[name].error]
    if missing:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {missing[0]} not found.")
    return {TopicPartition(name, p.partition): list(p.replicas) for name in wanted for p in found[name].partitions}


def _current(cluster: ClusterClient, plan: Plan) -> dict[TopicPartition, list[int]]:
    found = _assignment(cluster, (topic for topic, _ in plan.replicas))
    missing = plan.replicas.keys() - found.keys()
    if missing:
        message = f"Unable to find partition: {names(missing, ', ')}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return {partition: found[partition] for partition in plan.replicas}


def _log_dirs(cluster: ClusterClient, replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[Replica, str]:
    wanted = [(topic, index, broker) for (topic, index), ids in replicas.items() for broker in ids]
    return {replica: now for replica, (now, _) in _log_dir_states(cluster, wanted).items() if now is not None}


def _log_dir_states(
    cluster: ClusterClient, replicas: Iterable[Replica]
) -> dict[Replica, tuple[str | None, str | None]]:
    """Where each replica is, and where it is being moved to; as far as its broker lives."""
    from moldau.client.admin import describe_log_dirs

    states: dict[Replica, tuple[str | None, str | None]] = dict.fromkeys(replicas, (None, None))
    for broker in sorted({broker for _, _, broker in states} & set(cluster.brokers())):
        for log_dir in describe_log_dirs(cluster, broker):
            for each in log_dir.partitions:
                replica = (each.topic, each.partition, broker)
                if replica in states:
                    now, future = states[replica]
                    states[replica] = (now, log_dir.path) if each.is_future else (log_dir.path, future)
    return states


# -- throttles


def _moves(
    moving: Mapping[TopicPartition, Reassignment], plan: Plan, current: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, Move]:
    """What moves already and what shall: from the replicas that have the records, to those that get them."""
    moves = {
        partition: Move(frozenset(each.replicas) - frozenset(each.adding), frozenset(each.adding))
        for partition, each in moving.items()
    }
    for partition, target in plan.replicas.items():
        sources = moves[partition].sources if partition in moves else frozenset(current[partition])
        moves[partition] = Move(sources, frozenset(target) - sources)
    return moves


def _throttle(
    cluster: ClusterClient, args: argparse.Namespace, plan: Plan, moves: Mapping[TopicPartition, Move]
) -> None:
    from moldau.client.admin import Resource, alter_configs

    if args.throttle is None and args.replica_alter_log_dirs_throttle is None:
        return
    print(
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle "
        "is removed."
    )
    if args.throttle is not None:
        for topic, values in throttled_replicas(moves).items():
            keys = dict(zip(_REPLICA_KEYS, values, strict=True))
            alter_configs(cluster, Resource(ResourceType.TOPIC, topic), set_values=keys)
        for broker in sorted({broker for move in moves.values() for broker in move.sources | move.destinations}):
            rates = dict.fromkeys(_RATE_KEYS, str(args.throttle))
            alter_configs(cluster, Resource(ResourceType.BROKER, str(broker)), set_values=rates)
        print(f"The inter-broker throttle limit was set to {args.throttle} B/s")
    if args.replica_alter_log_dirs_throttle is not None:
        for broker in sorted({broker for _, _, broker in plan.log_dirs}):
            rate = {_LOG_DIR_RATE_KEY: str(args.replica_alter_log_dirs_throttle)}
            alter_configs(cluster, Resource(ResourceType.BROKER, str(broker)), set_values=rate)
        print(f"The replica-alter-dir throttle limit was set to {args.replica_alter_log_dirs_throttle} B/s")


def _clear_throttles(cluster: ClusterClient, plan: Plan) -> None:
    """On all brokers: which of them had been sources, nobody knows any more."""
    from moldau.client.admin import Resource, alter_configs

    brokers = sorted(cluster.brokers())
    print(f"Clearing broker-level throttles on broker{_s(brokers)} {_ids(brokers)}")
    for broker in brokers:
        keys = (*_RATE_KEYS, _LOG_DIR_RATE_KEY)
        alter_configs(cluster, Resource(ResourceType.BROKER, str(broker)), set_values={}, delete=keys)
    topics = sorted({topic for topic, _ in plan.replicas})
    print(f"Clearing topic-level throttles on topic{_s(topics)} {','.join(topics)}")
    for topic in topics:
        alter_configs(cluster, Resource(ResourceType.TOPIC, topic), set_values={}, delete=_REPLICA_KEYS)


# -- log directories


def _move_log_dirs(cluster: ClusterClient, wanted: Mapping[Replica, str], timeout_ms: int) -> None:
    """A replica that has yet to arrive at its broker is asked for again until the time is up."""
    from moldau.client.cluster_admin import alter_replica_log_dirs

    deadline = time.monotonic() + timeout_ms / 1000
    waiting = dict(wanted)
    while waiting:
        states = _log_dir_states(cluster, waiting)
        there = [replica for replica, path in waiting.items() if states[replica] == (path, None)]
        elsewhere = {replica: path for replica, path in waiting.items() if replica not in there}
        for replica in [*there, *alter_replica_log_dirs(cluster, elsewhere)]:
            topic, index, broker = replica
            path = waiting.pop(replica)
            print(
                f"Successfully started moving log directory to {path} for replica {topic}-{index} with broker {broker}"
            )
        if waiting and time.monotonic() > deadline:
            late = ",".join(f"{topic}-{index}-{broker}" for topic, index, broker in sorted(waiting))
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Timed out before log directory move{_s(waiting)} could be started for: {late}",
            )
        if waiting:
            time.sleep(_LOG_DIR_RETRY_S)


def _print_log_dir_states(cluster: ClusterClient, wanted: Mapping[Replica, str]) -> bool:
    """Whether any of these replicas is being moved still."""
    states = _log_dir_states(cluster, wanted)
    by_broker = sorted(wanted.items(), key=lambda item: (item[0][2], item[0]))
    print("\n".join(_log_dir_state(replica, target, *states[replica]) for replica, target in by_broker))
    return any(future is not None for _, future in states.values())


def _log_dir_state(replica: Replica, target: str, now: str | None, future: str | None) -> str:
    topic, index, broker = replica
    if now is None:
        return f"Partition {topic}-{index} cannot be found in any live log directory on broker {broker}."
    if future == target:
        return f"Reassignment of replica {topic}-{index}-{broker} is still in progress."
    if future is not None:
        return f"Partition {topic}-{index} on broker {broker} is being moved to log dir {future} instead of {target}."
    if now == target:
        return f"Reassignment of replica {topic}-{index}-{broker} completed successfully."
    return f"Partition {topic}-{index} on broker {broker} is not being moved from log dir {now} to {target}."


# -- words


def _raise_all(head: str, errors: Mapping[TopicPartition, KafkaError]) -> None:
    if errors:
        lines = [f"{names([partition])}: {error.message}" for partition, error in sorted(errors.items())]
        raise KafkaError(next(iter(errors.values())).code, "\n".join([head, *lines]))


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def _s(things: object) -> str:
    return "" if len(things) == 1 else "s"  # type: ignore[arg-type]

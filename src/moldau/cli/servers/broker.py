"""`moldau start`, `kafka-server-start`, `moldau stop`, `kafka-server-stop`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.cli.common import DAEMON_FLAGS, CommandParser, load_server_properties
from moldau.cli.servers import logs, running
from moldau.errors import ConfigError, MoldauError
from moldau.version import __version__

if TYPE_CHECKING:
    from moldau.broker.server import Server
    from moldau.config.broker import BrokerConfig

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_USAGE = 2
STOP_TIMEOUT_S = 60.0
SWITCH_INTERVAL_S = 0.0005
"""How long a thread that decodes a long request may keep the interpreter from the event loop. Python's own 5 ms would
have to be waited for with each read and write of a socket."""
FILES_MAX = 65_536
"""Open files to ask for: Kafka's documents recommend 100,000; two of ours make a partition."""

_START_EXAMPLE = """\
moldau start
moldau start --port 19092 --data-dir ./data
moldau start --brokers 3
moldau stop --node-id 2 && moldau start --node-id 2    # restart one of them
kafka-server-start server.properties --override num.partitions=3
kafka-server-start -daemon server.properties"""


def kafka_server_start_main(argv: Sequence[str] | None = None) -> int:
    """As Kafka's own command, it wants a file; `moldau start` does without."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        print("USAGE: kafka-server-start [-daemon] server.properties [--override property=value]*", file=sys.stderr)
        return EXIT_FAILED
    return start_main(given, stop="kafka-server-stop")


def start_main(argv: Sequence[str] | None = None, *, stop: str = "moldau stop") -> int:
    """`stop` is the command that stops what was started, for the message of -daemon."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = _parse_start(given)
    try:
        logs.set_up(arguments.log_format, arguments.log_level, file=arguments.log_config)
        if arguments.daemon:
            return _start_in_background(arguments, given, stop)
        if arguments.node_id is not None:
            return _start_again(arguments)
        if arguments.brokers is not None:
            return _supervise(arguments)
        config = _load_config(arguments)
        return _run(config, is_child=arguments.child)
    except MoldauError as error:
        print(f"moldau: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


def _parse_start(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "moldau start",
        "Start a broker. Without a file it listens on 127.0.0.1:9092 and keeps its data in ./moldau-data.\nWith "
        "--brokers 3, start a cluster of three on ports 9092 to 9094 with its data in ./moldau-cluster. A "
        "broker\nthat dies is restarted; all of them stop with this command or with `moldau stop`.",
        _START_EXAMPLE,
    )
    parser.add_argument(
        "properties", nargs="?", type=Path, metavar="server.properties", help="a server.properties file"
    )
    parser.add_argument(
        "--override", action="append", default=[], metavar="key=value", help="set a property; repeatable"
    )
    parser.add_argument("--port", type=int, help="short for --override listeners=PLAINTEXT://HOST:PORT")
    parser.add_argument("--host", help="the address to listen on (default: 127.0.0.1); 0.0.0.0 means all interfaces")
    parser.add_argument("--data-dir", type=Path, help="short for --override log.dirs=FOLDER")
    parser.add_argument(
        "--brokers", type=int, metavar="N", help="start a cluster of N brokers with consecutive node ids and ports"
    )
    parser.add_argument(
        "--node-id", type=int, metavar="N", help="restart a stopped broker of a running --brokers cluster"
    )
    # How a supervisor starts its brokers: their lines name them, and they stop when their standard input ends.
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_daemon_flag()
    parser.add_argument(
        "--log-config", type=Path, metavar="FILE", help="file with log levels and format, see the sample log.properties"
    )
    parser.add_argument("--log-format", choices=logs.FORMATS, help="default: text")
    parser.add_argument("--log-level", choices=logs.LEVELS, type=str.upper, help="default: INFO")
    return parser.parse_args(argv)


def _start_in_background(arguments: argparse.Namespace, given: Sequence[str], stop: str) -> int:
    from moldau.cli.servers.daemon import start_in_background

    if arguments.brokers is None:
        _load_config(arguments)  # what is wrong with it is said here, too
    return start_in_background(
        ["start", *(each for each in given if each not in DAEMON_FLAGS)],
        name=arguments.properties.stem if arguments.properties is not None else "server",
        is_ready=running.is_ready,
        stop=stop,
    )


def _supervise(arguments: argparse.Namespace) -> int:
    from moldau.cli.servers.supervisor import supervise  # the client it asks its brokers with is no part of a broker

    logging_options = {
        "--log-format": arguments.log_format,
        "--log-level": arguments.log_level,
        "--log-config": arguments.log_config and arguments.log_config.absolute(),
    }
    options = [part for option, value in logging_options.items() if value for part in (option, str(value))]
    if arguments.host is not None:
        raise ConfigError(
            "--host cannot be used with --brokers, which listens on 127.0.0.1; for other addresses "
            "use server.properties"
        )
    port = 9092 if arguments.port is None else arguments.port
    return supervise(arguments.brokers, port, arguments.data_dir, _load_properties(arguments, {}), options)


def _start_again(arguments: argparse.Namespace) -> int:
    if arguments.brokers is not None:
        raise ConfigError("--node-id and --brokers cannot be used together")
    from moldau.cli.servers.supervisor import start_again

    return start_again(arguments.node_id, arguments.data_dir)


def _load_config(arguments: argparse.Namespace) -> BrokerConfig:
    from moldau.config.broker import BrokerConfig

    short = {}
    if arguments.port is not None or arguments.host is not None:
        short["listeners"] = f"PLAINTEXT://{arguments.host or '127.0.0.1'}:{arguments.port or 9092}"
    if arguments.data_dir is not None:
        short["log.dirs"] = str(arguments.data_dir)
    config, warnings = BrokerConfig.from_properties(_load_properties(arguments, short))
    if arguments.child:
        logs.set_up(arguments.log_format, arguments.log_level, config.node_id, file=arguments.log_config)
    for warning in warnings:
        logger.warning(warning)
    return config


def _load_properties(arguments: argparse.Namespace, short: Mapping[str, str]) -> dict[str, str]:
    """The file's, over them what has a `short` option, over them the overrides."""
    properties = {} if arguments.properties is None else load_server_properties(arguments.properties)
    properties.update(short)
    for override in arguments.override:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--override {override}: expected key=value, for example --override num.partitions=3")
        properties[key.strip()] = value.strip()
    return properties


def _run(config: BrokerConfig, *, is_child: bool) -> int:
    from moldau.broker.loop import new_event_loop

    _prepare_process()
    loop = new_event_loop()
    try:
        loop.run_until_complete(_serve(config, is_child=is_child))
    finally:
        loop.close()
    return 0


async def _serve(config: BrokerConfig, *, is_child: bool) -> None:
    from moldau.broker.server import Server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if is_child:
        loop.add_reader(sys.stdin.fileno(), _stop_at_the_end_of_input, loop, stop)
    server = Server(config)
    try:
        if not await _started(server, stop):
            logger.info("stopped before it was ready")
            return
        with running.registered(
            {
                "node.id": config.node_id,
                "listeners": _addresses(server),
                "log.dirs": [os.path.abspath(folder) for folder in config.log_dirs],
                "parent": os.getppid() if is_child else None,
            }
        ):
            await _serve_until(stop, server)
            logger.info("stopping")
            await server.stop()
            logger.info("stopped")
    finally:
        await server.stop()


async def _started(server: Server, stop: asyncio.Event) -> bool:
    """False where it had to stop while it waited for its cluster, which can take for ever."""
    starting, stopping = asyncio.ensure_future(server.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        server.give_up()
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


def _stop_at_the_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """The other end of the pipe is held by who started this broker, and closes when that one dies."""
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


async def _serve_until(stop: asyncio.Event, server: Server) -> None:
    logger.info(
        "Moldau %s is ready",
        __version__,
        extra={
            "listeners": ",".join(_addresses(server)),
            "node": server.config.node_id,
            "data": ",".join(map(str, server.config.log_dirs)),
            "partitions": len(server.node.logs.logs),
        },
    )
    _quiet_garbage_collector()
    await stop.wait()


def _addresses(server: Server) -> list[str]:
    return [f"{name}://{host}:{port}" for name, (host, port) in server.bound.items()]


def _prepare_process() -> None:
    """Before the first thread: room for many open files, so that a thousand partitions are not too many."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            logger.warning("cannot raise the limit on open files", extra={"limit": soft})
            wanted = soft
    # The kernel doubles a process's table of files as they are opened, and once there are threads each doubling waits
    # for all CPUs: 10 ms in which nothing is served. One file with a high number grows it now, while it costs nothing.
    low = os.open(os.devnull, os.O_RDONLY)
    os.close(os.dup2(low, wanted - 1))
    os.close(low)


def _quiet_garbage_collector() -> None:
    """What start-up made lives as long as the process: without it a full collection takes 1 ms, with it 20.

    A large request is a hundred thousand objects or more while it is answered, and a full collection, which goes
    through all of them, takes 50 ms. So those are rare; the garbage of every day is young, and found by the others.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 5, 1000)


def stop_main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        "moldau stop",
        "Stop the brokers that you run on this machine, cleanly, as with SIGTERM.\nA broker of `moldau start "
        "--brokers` that is stopped with --node-id stays stopped until\n`moldau start --node-id N`.",
        "kafka-server-stop --node-id 1",
    )
    parser.add_argument("--node-id", type=int, help="stop only the broker with this id")
    arguments = parser.parse_args(argv)
    try:
        everything = list(running.find_running())
    except (OSError, MoldauError) as error:
        print(f"moldau: {error}", file=sys.stderr)
        return EXIT_FAILED
    found = [facts for facts in everything if arguments.node_id in (None, facts["node.id"])]
    supervisors = {facts["pid"] for facts in found if facts["node.id"] is None}
    found = [facts for facts in found if facts.get("parent") not in supervisors]  # their supervisor stops them
    if not found:
        ids = sorted(facts["node.id"] for facts in everything if facts["node.id"] is not None)
        others = f" with id {arguments.node_id}; running: {', '.join(map(str, ids))}" if ids else ""
        print(f"No kafka server to stop{others}", file=sys.stderr)
        return EXIT_FAILED
    for facts in found:
        who = "the brokers" if facts["node.id"] is None else f"broker {facts['node.id']}"
        print(f"stopping {who} on {', '.join(facts['listeners'])} (process {facts['pid']})")
        os.kill(facts["pid"], signal.SIGTERM)
    return 0 if running.wait_until_ended([facts["pid"] for facts in found], STOP_TIMEOUT_S) else EXIT_FAILED

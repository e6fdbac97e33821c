"""What every command shares: Kafka-like parsers, exit codes, one-line errors, plain or pretty output.

Exit codes: 0 done, 1 failed, 2 wrong usage. Output is Kafka's own plain text in a pipe; tables are for people
at a terminal and `--json` is for machines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from moldau.errors import ConfigError, ErrorCode, InvalidPipelineError, KafkaError, MoldauError
from moldau.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from moldau.client.cluster import ClusterClient
    from moldau.client.config import ClientConfig

T = TypeVar("T")

EXIT_FAILED = 1
DEFAULT_SERVER = "localhost:9092"
DAEMON_FLAGS = ("-daemon", "--daemon")


class CommandParser(argparse.ArgumentParser):
    """argparse with one-line errors and an example in every help text."""

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog="example:\n" + "\n".join(f"  {line}" for line in example.format(prog=prog).splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--version", action="version", version=f"moldau {__version__}")

    def error(self, message: str) -> NoReturn:
        _, is_unknown, unknown = message.partition("unrecognized arguments: ")
        if is_unknown:
            message += did_you_mean(unknown.split()[0].partition("=")[0], self._option_string_actions)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def add_flag(self, name: str, text: str) -> None:
        self.add_argument(name, action="store_true", help=text)

    def add_daemon_flag(self) -> None:
        self.add_argument(
            *DAEMON_FLAGS, action="store_true", help="run in the background and log to a file in $LOG_DIR or ./logs"
        )

    def add_connection(self, *, old_name: str | None = None) -> None:
        """`old_name` is what books and scripts of earlier Kafkas write, like --broker-list."""
        self.add_argument(
            "--bootstrap-server",
            metavar="HOST:PORT,…",
            help=f"the brokers to connect to (default: {DEFAULT_SERVER})",
        )
        if old_name:
            self.add_argument(old_name, dest="bootstrap_server", help=argparse.SUPPRESS)
        self.add_argument("--zookeeper", help=argparse.SUPPRESS)

    def add_command_config(self) -> None:
        self.add_argument("--command-config", metavar="FILE", help="properties file for the client")

    def add_json(self) -> None:
        self.add_flag("--json", "print JSON")

    def require(self, args: argparse.Namespace, *names: str) -> None:
        for name in names:
            if getattr(args, name.removeprefix("--").replace("-", "_")) is None:
                self.error(f"Missing required argument {name}")

    def require_connection(self, args: argparse.Namespace) -> None:
        if args.bootstrap_server is None and args.zookeeper is not None:
            warn(f"{self.prog}: --zookeeper is deprecated: use --bootstrap-server host:9092")
            try:
                args.bootstrap_server = _brokers_at(args.zookeeper)
            except MoldauError as error:
                self.exit(EXIT_FAILED, f"{self.prog}: {error}\n")

    def choose(self, args: argparse.Namespace, actions: Mapping[str, T]) -> T:
        """The value of the one action that was given."""
        given = [action for action in actions if getattr(args, action.removeprefix("--"))]
        if len(given) != 1:
            self.error(f"Command must include exactly one action: {', '.join(actions)}")
        return actions[given[0]]

    def allow_with(self, args: argparse.Namespace, option: str, *actions: str) -> None:
        """`option` makes sense only together with one of `actions`."""

        def given(name: str) -> bool:
            return getattr(args, name.removeprefix("--").replace("-", "_")) not in (None, False, [])

        if given(option) and not any(given(action) for action in actions):
            self.error(f"Option {option} can be used only with {' or '.join(actions)}")


def _brokers_at(zookeeper: str) -> str:
    from moldau.client.zookeeper import brokers_at  # with kazoo, for those who have an ensemble

    return brokers_at(zookeeper)


def run(prog: str, work: Callable[[], int], *, prefix: str = "") -> int:
    """Do the work; an error we raise on purpose becomes one line on stderr, never a traceback.

    `prefix` is how Kafka's own command begins the line for what a broker refused.
    """
    # Of a stream that was closed before we began (`>&-`), Python makes None.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        code = work()
        sys.stdout.flush()
        return code
    except InvalidPipelineError as error:
        return _fail_with_places(error)
    except ConfigError as error:
        return _fail(f"{prog}: {error}", 2)
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (MoldauError, OSError) as error:
        return _fail(f"{prefix or prog + ': '}{error}{_where_brokers_are(error)}", 1)
    except KeyboardInterrupt:
        return 130


def run_client(prog: str, work: Callable[[], int]) -> int:
    """The same for work with a librdkafka client, whose errors are made readable; imported when it is needed."""

    def readable() -> int:
        from moldau.cli.records import confluent

        with confluent.readable_errors():
            return work()

    return run(prog, readable)


def _where_brokers_are(error: Exception) -> str:
    """For somebody who called the wrong port, or forgot to start a broker."""
    if not isinstance(error, KafkaError) or error.code != ErrorCode.BROKER_NOT_AVAILABLE:
        return ""
    found = ", ".join(address for facts in _running() if facts["node.id"] is not None for address in _addresses(facts))
    return (
        f". Brokers on this machine listen on {found}"
        if found
        else ". No running broker was found on this machine; start one with `moldau start`"
    )


def default_servers() -> str:
    """localhost:9092, or all brokers of the local cluster that has one there: that one may be stopped."""
    for facts in _running():
        addresses = _addresses(facts)
        if facts["node.id"] is None and any(address.endswith(":9092") for address in addresses):
            return ",".join(addresses)
    return DEFAULT_SERVER


def _running() -> list[dict[str, Any]]:
    """The brokers and supervisors of brokers that this user runs on this machine."""
    from moldau.cli.servers import running

    try:
        return list(running.find_running())
    except OSError:
        return []


def _addresses(facts: dict[str, Any]) -> list[str]:
    return [listener.partition("://")[2] for listener in facts["listeners"]]


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(" ".join(message.split()), file=sys.stderr)
    return code


def _fail_with_places(error: InvalidPipelineError) -> int:
    """A line for each problem, which begins with the place, so that terminals and editors find it."""
    sys.stdout.flush()
    for problem in error.problems:
        print(" ".join(str(problem).split()), file=sys.stderr)
    return 2


def warn(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def load_properties(path: str | None) -> dict[str, str]:
    """A `.properties` file as a dict; empty for no file."""
    if path is None:
        return {}
    from moldau.config.properties import parse_properties

    return parse_properties(load_text(path))


def load_server_properties(path: Path) -> dict[str, str]:
    """In UTF-8, or Latin-1, which such files of servers were in for twenty years."""
    from moldau.config.properties import parse_properties

    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return parse_properties(data.decode())
    except UnicodeDecodeError:
        return parse_properties(data.decode("latin-1"))


def load_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error


def parse_key_values(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` arguments; the value may be empty and may hold further `=`."""
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"'{pair}': expected key=value")
        values[key.strip()] = value
    return values


def connect(args: argparse.Namespace) -> ClusterClient:
    """The cluster of --bootstrap-server and --command-config; a --timeout bounds all tries of a call together."""
    from moldau.client.cluster import ClusterClient

    config = cluster_config(args, load_properties(args.command_config))
    timeout_ms = getattr(args, "timeout", None)
    if timeout_ms is not None:
        timeout_ms = max(1, timeout_ms)
        config = config._replace(
            api_timeout_ms=timeout_ms,
            request_timeout_ms=min(timeout_ms, config.request_timeout_ms),
            connection_timeout_ms=min(timeout_ms, config.connection_timeout_ms),
        )
    return ClusterClient(config)


def cluster_config(args: argparse.Namespace, properties: Mapping[str, str]) -> ClientConfig:
    """With the servers of the arguments, else of the properties, else the default."""
    from moldau.client.config import ClientConfig

    return ClientConfig.from_properties(
        args.bootstrap_server or "", {"bootstrap.servers": default_servers(), **properties}
    )


def run_with_cluster(
    prog: str,
    args: argparse.Namespace,
    work: Callable[[ClusterClient, argparse.Namespace], int | None],
    *,
    prefix: str = "",
) -> int:
    """`run`, for work on the cluster that the arguments name; None is success."""

    def with_cluster() -> int:
        with connect(args) as cluster:
            return work(cluster, args) or 0

    return run(prog, with_cluster, prefix=prefix)


def missing_topic(cluster: ClusterClient, topic: str, as_said: str = "") -> KafkaError:
    """What to raise for a topic that is not there; it names the one that was probably meant."""
    hint = did_you_mean(topic, cluster.metadata().topics)
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{topic}' does not exist{as_said}{hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that nobody knows; empty where no other is like it."""
    from moldau.config.keys import nearest  # only when something is wrong: keeps start-up short

    meant = nearest(word, known)
    return f" (did you mean '{meant}'?)" if meant else ""


def topic_pattern(text: str) -> re.Pattern[str]:
    """A topic argument as Kafka's tools read it: a regular expression, or several behind commas."""
    expression = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(f"'{text}' is an invalid regular expression: {error}") from error


def at_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2 if at_terminal() else None, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns under a bold head, for a terminal only: a pipe gets Kafka's own lines."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(header), *(len(line[i]) for line in lines), 0) for i, header in enumerate(headers)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    print(bold(line(headers)))
    for cells in lines:
        print(line(cells))


def print_tabbed(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; in a pipe as some of Kafka's commands print theirs, with a tab after every aligned cell."""
    lines = [[str(cell) for cell in row] for row in rows]
    if at_terminal():
        print_table(headers, lines)
        return
    widths = [max(len(line[i]) for line in (headers, *lines)) for i in range(len(headers))]
    for line in (headers, *lines):
        print("".join(cell.ljust(width) + "\t" for cell, width in zip(line, widths, strict=True)))


def bold(text: str) -> str:
    return styled(text, "1")


def styled(text: str, style: str) -> str:
    """`style` as terminals number them: 1 is bold, 31 red, 32 green, 33 yellow."""
    return text if "NO_COLOR" in os.environ or not at_terminal() else f"\033[{style}m{text}\033[0m"

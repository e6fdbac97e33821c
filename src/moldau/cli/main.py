"""`moldau <command> …`: one door to every command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from moldau.cli.registry import BY_NAME, COMMANDS, MISSING
from moldau.version import __version__

# What people type for commands that have another name here; `status` must never suggest `stop`.
_MEANT = {
    **dict.fromkeys(("status", "top", "ps", "health", "brokers", "describe-cluster"), "cluster status"),
    **dict.fromkeys(("run", "server", "serve", "up", "server-start", "broker"), "start"),
    **dict.fromkeys(("down", "kill", "server-stop"), "stop"),
    **dict.fromkeys(("produce", "producer", "send"), "console-producer"),
    **dict.fromkeys(("consume", "consumer", "cat", "tail", "read"), "console-consumer"),
    **dict.fromkeys(("topic", "create", "list", "ls", "describe"), "topics"),
    **dict.fromkeys(("lag", "offsets"), "consumer-groups"),
}


def main(argv: Sequence[str] | None = None, prog: str = "moldau") -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(prog))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"moldau {__version__}")
        return 0
    name = arguments[0].removeprefix("kafka-").removesuffix(".sh")
    command = BY_NAME.get(name)
    return _unknown(arguments[0], name, prog) if command is None else command.run(arguments[1:], f"{prog} {name}")


def _unknown(given: str, name: str, prog: str) -> int:
    from moldau.cli import missing
    from moldau.config.keys import nearest  # only when something is wrong: keeps start-up short

    kafkas = next((known for known in (name, f"kafka-{name}") if known in MISSING), None)
    if kafkas is not None:
        return missing.main(prog=kafkas)
    meant = _MEANT.get(name) or nearest(name, BY_NAME)
    hint = f"did you mean {prog} {meant}?" if meant else f"see {prog} --help"
    print(f"{prog}: unknown command '{given}' ({hint})", file=sys.stderr)
    return 2


def _help(prog: str) -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name.ljust(width)}  {command.summary}" for command in COMMANDS]
    return "\n".join(
        [
            f"usage: {prog} <command> [options]",
            "",
            "Kafka's commands with Kafka's flags. Each is also installed under Kafka's name (kafka-topics, …).",
            "",
            *lines,
            "",
            "example:",
            f"  {prog} topics --bootstrap-server localhost:9092 --create --topic orders --partitions 3",
            "",
            f"Run {prog} <command> --help for the options of a command.",
        ]
    )

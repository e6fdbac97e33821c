"""`kafka-run-class kafka.tools.DumpLogSegments …`: commands by the Java class that Kafka runs for them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from moldau.cli.registry import BY_JAVA_CLASS, MISSING_CLASSES
from moldau.version import __version__


def main(argv: Sequence[str] | None = None, prog: str = "kafka-run-class") -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Kafka's script takes switches for the JVM (-daemon, -name x, -loggc) before the class.
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version"):
        del arguments[: 2 if arguments[0] == "-name" else 1]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help(prog))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"moldau {__version__}")
        return 0
    # The packages moved over the years (kafka.tools, kafka.admin, org.apache.kafka.tools); the names did not.
    class_name = arguments[0].rpartition(".")[2]
    command = BY_JAVA_CLASS.get(class_name)
    if command is None:
        use = MISSING_CLASSES.get(class_name)
        hint = f": {use}" if use else f" (see {prog} --help)"
        print(f"{prog}: no command for class {arguments[0]}{hint}", file=sys.stderr)
        return 2
    return command.run(arguments[1:], f"{prog} {arguments[0]}")


def _help(prog: str) -> str:
    width = max(len(name) for name in BY_JAVA_CLASS)
    lines = [f"  {name.ljust(width)}  {command.summary}" for name, command in BY_JAVA_CLASS.items()]
    return "\n".join(
        [
            f"usage: {prog} <class> [options]",
            "",
            "Classes, with any package in front:",
            *lines,
            "",
            "example:",
            f"  {prog} kafka.tools.DumpLogSegments --files 00000000000000000000.log --print-data-log",
        ]
    )

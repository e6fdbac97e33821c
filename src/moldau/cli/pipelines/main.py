"""`moldau pipeline VERB …`: the table of verbs. The module of a verb is imported when it is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from moldau.cli.common import did_you_mean
from moldau.version import __version__

VERBS = {
    "init": "write an example pipeline that runs",
    "lint": "check files and print what is wrong, with line and column",
    "graph": "show sources, steps and sinks as a tree or for Mermaid",
    "preview": "print the first rows and the schema of a source",
    "test": "run the given/expect tests of files, without a broker",
    "dry-run": "say what a run would do and change, without starting anything",
    "run": "run pipelines until they are stopped",
    "submit": "hand pipelines to a worker, which keeps them running",
    "list": "list the pipelines that run on this machine",
    "status": "show the queries of a running pipeline",
    "stop": "stop a running pipeline after its current micro-batch",
    "logs": "print what happened to a pipeline of a worker",
    "dead-letters": "list, show and send again the records that could not be processed",
    "reset": "make a stopped pipeline start from other offsets or without its state",
}


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline") -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help", "help"):
        print(_help(prog))
        return 0
    if first == "--version":
        print(f"moldau {__version__}")
        return 0
    if first not in VERBS:
        wrong = f"unknown command '{first}'{did_you_mean(first, VERBS)}" if first else "a command is missing"
        print(f"{prog}: {wrong} (see {prog} --help)", file=sys.stderr)
        return 2
    module = importlib.import_module(f"moldau.cli.pipelines.{first.replace('-', '_')}")
    return int(module.main(arguments[1:], f"{prog} {first}"))


def _help(prog: str) -> str:
    width = max(map(len, VERBS))
    return "\n".join(
        [
            f"usage: {prog} <command> [options]",
            "",
            "Pipelines on Spark, described in YAML files: sources, steps in SQL or Python, and sinks.",
            "",
            *(f"  {verb.ljust(width)}  {summary}" for verb, summary in VERBS.items()),
            "",
            "example:",
            f"  {prog} init page-counts.yaml",
            f"  {prog} test page-counts.yaml",
            f"  {prog} run page-counts.yaml",
            "",
            f"Run {prog} <command> --help for the options of a command.",
        ]
    )

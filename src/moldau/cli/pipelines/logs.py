"""`moldau pipeline logs NAME --worker URL`: what happened to a pipeline of a worker."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.cli.common import CommandParser, print_json, run
from moldau.cli.pipelines.workers import WorkerClient, add_worker


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline logs") -> int:
    parser = CommandParser(
        prog,
        "Print what has happened to a pipeline since its worker became active: states and reasons of its queries.",
        "{prog} page-counts --worker http://127.0.0.1:8083",
    )
    parser.add_argument("name", metavar="NAME", help="of the pipeline")
    add_worker(parser, is_required=True)
    parser.add_json()
    arguments = parser.parse_args(argv)

    def work() -> int:
        lines = WorkerClient(arguments.worker).logs(arguments.name)
        if arguments.json:
            print_json(lines)
        else:
            print(*lines, sep="\n")
        return 0

    return run(prog, work)

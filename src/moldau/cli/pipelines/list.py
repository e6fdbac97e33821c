"""`moldau pipeline list`: the pipelines that run on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.cli.common import CommandParser, print_json, print_table, run
from moldau.cli.pipelines.workers import add_worker, show_list
from moldau.clocks import wall_clock_ms
from moldau.pipelines.engine.state_files import known_runs

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline list") -> int:
    parser = CommandParser(prog, "List the pipelines that you run on this machine.", "{prog}\n{prog} --all")
    parser.add_flag("--all", "also those that have ended")
    add_worker(parser)
    parser.add_json()
    arguments = parser.parse_args(argv)

    def work() -> int:
        if arguments.worker:
            return show_list(arguments.worker, as_json=arguments.json)
        runs = known_runs(with_ended=arguments.all)
        if arguments.json:
            print_json([each.facts for each in runs])
            return 0
        rows = [
            (each.name, each.facts["state"], each.facts["pid"], age(each.facts["started_ms"]), each.facts["file"] or "")
            for each in runs
        ]
        print_table(("PIPELINE", "STATE", "PROCESS", "STARTED", "FILE"), rows)
        return 0

    return run(prog, work)


def age(since_ms: int) -> str:
    """5 min ago."""
    seconds = max((wall_clock_ms() - since_ms) // 1000, 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "s"))
    return f"{seconds // size} {unit} ago"

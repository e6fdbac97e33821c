"""`moldau pipeline status NAME`: what the queries of a pipeline are doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from moldau.cli.common import CommandParser, print_json, print_table, run
from moldau.cli.pipelines.list import age
from moldau.cli.pipelines.workers import add_worker, show_status
from moldau.clocks import wall_clock_ms
from moldau.config.keys import nearest
from moldau.errors import CommandError
from moldau.pipelines.engine.state_files import KnownRun, known_runs
from moldau.pipelines.engine.watching.short_text import short, short_seconds


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline status") -> int:
    parser = CommandParser(
        prog,
        "Show the queries of a pipeline that runs on this machine, or how its last run ended.",
        "{prog} page-counts\n{prog} page-counts.yaml --json",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="pipelines or their files (default: all that run)")
    add_worker(parser)
    parser.add_json()
    arguments = parser.parse_args(argv)

    def work() -> int:
        if arguments.worker:
            return show_status(arguments.worker, arguments.names, as_json=arguments.json)
        runs = chosen_runs(arguments.names, with_ended=True) if arguments.names else known_runs()
        if arguments.json:
            print_json([each.facts for each in runs])
            return 0
        for each in runs:
            _print(each)
        return 0

    return run(prog, work)


def chosen_runs(names: Sequence[str], *, with_ended: bool = False) -> list[KnownRun]:
    """The runs that these names or files mean. Raises CommandError if one means none."""
    runs = known_runs(with_ended=with_ended)
    for name in names:
        if not any(each.is_meant_by(name) for each in runs):
            meant = nearest(name, [each.name for each in runs])
            hint = f": did you mean '{meant}'?" if meant else " (see `moldau pipeline list --all`)"
            raise CommandError(f"no pipeline '{name}' {'is known' if with_ended else 'is running'}{hint}")
    return [each for each in runs if any(each.is_meant_by(name) for name in names)]


def _print(found: KnownRun) -> None:
    facts = found.facts
    reason = f": {facts['reason']}" if facts.get("reason") else ""
    origin = f"{facts['file']}, " if facts["file"] else ""
    print(
        f"{found.name}: {facts['state']}{reason} ({origin}process {facts['pid']}, started {age(facts['started_ms'])})"
    )
    rows = [
        (query["name"], query["state"], age(query["since_ms"]), query["restarts"], *_numbers(query), _why(query))
        for query in facts["queries"]
    ]
    if rows:
        print_table(("QUERY", "STATE", "SINCE", "RESTARTS", "IN/S", "OUT/S", "LAG", "LAG-S", "REASON"), rows)


def _numbers(query: dict[str, Any]) -> Iterator[str]:
    progress = query.get("progress") or {}
    for name in ("rows_in_per_second", "rows_out_per_second", "lag"):
        yield short(progress.get(name))
    yield short_seconds(progress.get("lag_seconds"))


def _why(query: dict[str, Any]) -> str:
    if not query.get("attempt"):
        return str(query["reason"])
    next_try_ms = query["next_try_ms"]
    when = "now" if next_try_ms is None else f"in {max(next_try_ms - wall_clock_ms(), 0) / 1000:.0f} s"
    return f"{query['reason']} (attempt {query['attempt']} {when})"

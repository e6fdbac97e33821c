"""`moldau pipeline reset FILE`: a stopped pipeline starts from other offsets, without its state.

The old checkpoint is kept beside the new one, under a name with the time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from moldau.cli.common import CommandParser, did_you_mean, print_json, run
from moldau.cli.pipelines.overrides import add_overrides, overridden
from moldau.errors import CommandError
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.model.references import hidden, hidden_in

if TYPE_CHECKING:
    from moldau.pipelines.engine.checkpoints.reset import Reset


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline reset") -> int:
    parser = CommandParser(
        prog,
        "Make the queries of a stopped pipeline start over, without state. Old checkpoints are renamed, not deleted.\n"
        "  committed   at the offsets where they stopped: no record is processed twice, but windows open now are lost\n"
        "  earliest    at the first records that are there: results are written again, beside the old ones\n"
        "  latest      at the end of the topics, when the pipeline starts\n"
        '  JSON        at these offsets: {"clicks": {"0": 100, "1": 120}}',
        "{prog} page-counts.yaml --to committed\n{prog} page-counts.yaml --query out --to earliest --dry-run",
    )
    parser.add_argument("file", metavar="FILE", help="the pipeline's file")
    parser.add_argument("--query", metavar="NAME", action="append", help="only this query (a sink's name)")
    parser.add_argument("--to", required=True, metavar="WHERE", help="committed, earliest, latest, or offsets as JSON")
    parser.add_flag("--dry-run", "only say what would be done")
    add_overrides(parser)
    parser.add_json()
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _reset(arguments))


def _reset(arguments: argparse.Namespace) -> int:
    pipeline = overridden(load_pipeline(arguments.file), arguments)
    from moldau.pipelines.engine.checkpoints.reset import plan_reset
    from moldau.pipelines.engine.queries import Settings, plan_queries
    from moldau.pipelines.engine.state_files import kept_from_running

    settings = Settings.of(pipeline)
    with kept_from_running(pipeline, settings.checkpoint(pipeline)):
        plans = {plan.name: plan for plan in plan_queries(pipeline)}
        for name in arguments.query or ():
            if name not in plans:
                hint = did_you_mean(name, plans) or f": there are {', '.join(plans)}"
                raise CommandError(f"pipeline {pipeline.name} has no query '{name}'{hint}")
        chosen = [plan for name, plan in plans.items() if not arguments.query or name in arguments.query]
        resets = [plan_reset(plan, settings, arguments.to) for plan in chosen]
        dropped = [reset.state_rows() for reset in resets]
        for reset in () if arguments.dry_run else resets:
            reset.apply()
    if arguments.json:
        print_json([hidden_in(_facts(reset, rows)) for reset, rows in zip(resets, dropped, strict=True)])
        return 0
    for reset, rows in zip(resets, dropped, strict=True):
        print(hidden("\n".join(_lines(reset, rows, arguments))))
    return 0


def _facts(reset: Reset, dropped: int | None) -> dict[str, object]:
    return {
        "query": reset.plan.name,
        "checkpoint": reset.location,
        "kept_aside": reset.aside,
        "start": dict(reset.start),
        "state_rows_dropped": dropped,
        "last_batch_unfinished": reset.is_unfinished,
    }


def _lines(reset: Reset, dropped: int | None, arguments: argparse.Namespace) -> Iterator[str]:
    would = "would start" if arguments.dry_run else "starts"
    yield f"{reset.plan.pipeline.name}.{reset.plan.name} {would} over"
    for source, start in reset.start.items():
        yield f"  {source}: {_where(source, start)}"
    if dropped != 0:
        is_again = arguments.to == "earliest"
        then = " and computed again" if is_again else ": windows and groups open now will not be written"
        yield f"  {_rows(dropped)} dropped{then}"
    if reset.aside is not None:
        yield f"  the old checkpoint {'would be' if arguments.dry_run else 'is'} kept in {reset.aside}"
    if reset.is_unfinished:
        yield "  its last batch was not finished: rows of it that are written already may be written again"


def _rows(count: int | None) -> str:
    if count is None:
        return "the state is"
    return "1 row of state is" if count == 1 else f"{count:,} rows of state are"


def _where(source: str, start: str) -> str:
    """{"clicks": {"0": 822, "1": 7}} as `partition 0 at 822, partition 1 at 7`."""
    if not start.startswith("{"):
        return f"at the {start} offsets"
    offsets: dict[str, dict[str, object]] = json.loads(start)
    return "; ".join(
        ("" if topic == source else f"topic {topic}: ")
        + ", ".join(f"partition {partition} at {offset}" for partition, offset in found.items())
        for topic, found in offsets.items()
    )

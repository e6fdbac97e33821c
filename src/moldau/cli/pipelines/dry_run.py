"""`moldau pipeline dry-run FILE…`: what a run would do and change, without starting or changing anything.

Exit codes: 0 all queries can run, 1 one cannot, 2 wrong usage or a wrong file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from moldau.cli.common import EXIT_FAILED, CommandParser, print_json, run, styled
from moldau.cli.pipelines.overrides import add_overrides, overridden
from moldau.pipelines.doors.yaml_file import load_pipelines
from moldau.pipelines.model.references import hidden, hidden_in

if TYPE_CHECKING:
    from moldau.pipelines.engine.dry_run import QueryReport

_RED, _GREEN, _YELLOW = "31", "32", "33"


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline dry-run") -> int:
    parser = CommandParser(
        prog,
        "Plan pipelines against their brokers and checkpoints, and say for each query where it would start, what has\n"
        "changed since its last run, and what would be refused. Nothing is started or changed.",
        "{prog} page-counts.yaml\n{prog} pipelines/ --json",
    )
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR", help="pipeline files, or folders with some")
    add_overrides(parser)
    parser.add_json()
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _dry_run(arguments))


def _dry_run(arguments: argparse.Namespace) -> int:
    pipelines = [overridden(pipeline, arguments) for pipeline in load_pipelines(arguments.paths)]
    from moldau.pipelines.engine.dry_run import dry_run
    from moldau.pipelines.engine.queries import Settings
    from moldau.pipelines.engine.session import session_for, silence

    settings = {pipeline.name: Settings.of(pipeline) for pipeline in pipelines}
    spark = session_for(settings, arguments.master)
    silence(spark)
    try:
        reports = dry_run(spark, pipelines)
    finally:
        spark.stop()
    if arguments.json:
        print_json([hidden_in(asdict(report)) | {"can_run": report.can_run} for report in reports])
    else:
        told: set[tuple[str, str]] = set()  # what several queries have in common is printed once
        for report in reports:
            print(hidden("\n".join(_lines(report, told))))
    return 0 if all(report.can_run for report in reports) else EXIT_FAILED


def _lines(report: QueryReport, told: set[tuple[str, str]]) -> Iterator[str]:
    problems = [text for text in report.problems if (report.pipeline, text) not in told]
    told.update((report.pipeline, text) for text in problems)
    see_above = " (see above)" if len(problems) < len(report.problems) else ""
    yield f"{report.pipeline}.{report.query}: {_headline(report)}{see_above}"
    if len(report.sinks) > 1:
        yield f"  sinks {', '.join(report.sinks)} share this query"
    parts = (
        ("problem", _RED, problems),
        ("refused", _RED, report.refused),
        ("way out", "", report.ways_out),
        ("changed", _YELLOW, report.changes),
        ("note", "", report.notes),
    )
    for word, color, texts in parts:
        for text in texts:
            yield f"  {styled(word, color) if color else word}: {text}"


def _headline(report: QueryReport) -> str:
    if not report.can_run:
        return styled("cannot run", _RED)
    if report.batch is None:
        text = "new"
    else:
        text = f"{'repeats' if report.is_repeated else 'continues at'} batch {report.batch}"
    if report.records is not None:
        text += f", {report.records:,} record{'' if report.records == 1 else 's'} to process"
    return styled(text, _GREEN) + (f" (state: {', '.join(report.stateful)})" if report.stateful else "")

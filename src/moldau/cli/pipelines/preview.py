"""`moldau pipeline preview`: the first rows of a source, and its schema."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from moldau.cli.common import CommandParser, print_json, print_table, run
from moldau.cli.pipelines.overrides import add_bootstrap_server, overridden
from moldau.errors import InvalidPipelineError
from moldau.pipelines.connectors.topic import NEEDS_SCHEMA
from moldau.pipelines.doors.yaml_file import read_pipeline

_ROWS = 10


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline preview") -> int:
    parser = CommandParser(
        prog,
        "Print the first rows of a source and its schema, ready to be copied into the file. Nothing is changed: no "
        "checkpoint, no consumer group, no dead letters.",
        "{prog} page-counts.yaml clicks\n{prog} page-counts.yaml clicks --rows 3 --json",
    )
    parser.add_argument("file", metavar="FILE", help="pipeline file")
    parser.add_argument("source", metavar="SOURCE", help="name of a source in it")
    parser.add_argument("--rows", type=int, default=_ROWS, metavar="N", help=f"how many rows (default: {_ROWS})")
    add_bootstrap_server(parser)
    parser.add_json()
    args = parser.parse_args(argv)
    if args.rows < 1:
        parser.error(f"argument --rows: {args.rows} is less than 1")
    return run(prog, lambda: _preview(args))


def _preview(args: argparse.Namespace) -> int:
    pipeline, problems = read_pipeline(args.file)
    if pipeline is None:
        raise InvalidPipelineError(problems)
    pipeline = overridden(pipeline, args)
    from moldau.pipelines.engine.preview import find_source, preview

    source = find_source(pipeline, args.source)
    # The rest of the file may be unfinished: a preview is for those who write it.
    own = (f"source {source.name}:", f"source {source.name} ")
    wrong = [each for each in problems if each.message.startswith(own) and NEEDS_SCHEMA not in each.message]
    if wrong:
        raise InvalidPipelineError(wrong)
    import moldau.spark

    found = preview(moldau.spark.session("moldau-preview", short_job=True), pipeline, source, args.rows)
    if args.json:
        print_json({"source": source.name, "options": found.options, "rows": found.rows})
        return 0
    if found.rows:
        print_table(found.columns, [[_cell(row.get(name)) for name in found.columns] for row in found.rows])
    else:
        print(f"source {source.name} has no rows")
    print(f"\n{found.text}")
    return 0


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""`moldau pipeline submit FILE --worker URL`: hand a pipeline to a worker, which keeps it running."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.cli.common import CommandParser, load_text, print_json, run
from moldau.cli.pipelines.workers import WorkerClient, add_worker
from moldau.pipelines.doors.yaml_file import load_pipelines


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline submit") -> int:
    parser = CommandParser(
        prog,
        "Hand pipeline files to a worker, which stores them and keeps them running. A pipeline of the same name is\n"
        "replaced, and continues where it was. References such as ${env:NAME} are resolved by the worker.",
        "{prog} page-counts.yaml --worker http://127.0.0.1:8083",
    )
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR", help="pipeline files, or folders with some")
    add_worker(parser, is_required=True)
    parser.add_json()
    arguments = parser.parse_args(argv)

    def work() -> int:
        client = WorkerClient(arguments.worker)
        pipelines = load_pipelines(arguments.paths)
        for pipeline in pipelines:
            client.submit(pipeline.name, load_text(str(pipeline.file)))
            if not arguments.json:
                print(f"submitted {pipeline.name}")
        if arguments.json:
            print_json([{"pipeline": pipeline.name, "submitted": True} for pipeline in pipelines])
        return 0

    return run(prog, work)

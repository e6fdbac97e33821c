"""`connect-standalone worker.properties connector.properties…`: run connectors in this process until it is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moldau.cli.common import CommandParser, run
from moldau.cli.pipelines.run import run_until_stopped
from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.doors.connect.files import checkpoint_folder, read_connector, read_worker


def main(argv: Sequence[str] | None = None, prog: str = "connect-standalone") -> int:
    parser = CommandParser(
        prog,
        "Run Kafka Connect's connectors on Spark, in this process. Tasks that fail are restarted.\n"
        "Ctrl-C, SIGTERM or SIGHUP: end after the running micro-batches. A second Ctrl-C ends at once.",
        "{prog} connect-standalone.properties connect-file-source.properties connect-file-sink.properties",
    )
    parser.add_argument("worker", type=Path, metavar="worker.properties", help="the worker's configuration")
    parser.add_argument(
        "connectors", type=Path, nargs="+", metavar="connector.properties", help="connectors, as properties or JSON"
    )
    parser.add_argument("--master", help="Spark's master (default: local[*])")
    parser.add_flag("--verbose", "print Spark's own log")
    parser.add_json()
    arguments = parser.parse_args(argv)

    def work() -> int:
        worker = read_worker(arguments.worker)
        checkpoint = checkpoint_folder(worker)
        configs = [read_connector(path) for path in arguments.connectors]
        pipelines = [to_pipeline(config["name"], config, worker, checkpoint) for config in configs]
        return run_until_stopped(
            pipelines, master=arguments.master, is_verbose=arguments.verbose, is_json=arguments.json
        )

    return run(prog, work)

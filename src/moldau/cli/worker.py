"""`moldau worker` and `connect-distributed`: a process that keeps connectors and pipelines running on Spark.

Exit codes: 0 ended as asked, 1 failed, 2 wrong usage or a wrong file.
"""

from __future__ import annotations

import argparse
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from moldau.cli.common import CommandParser, load_properties, run
from moldau.pipelines.model.references import hidden

_DESCRIPTION = (
    "Keep connectors and pipelines running on Spark, with Kafka Connect's REST interface. Definitions, offsets and\n"
    "states are in compacted topics: of several workers with one group.id, one is active and the others take over."
)


def main(argv: Sequence[str] | None = None, prog: str = "moldau worker") -> int:
    parser = CommandParser(prog, _DESCRIPTION, "{prog}\n{prog} --listen 127.0.0.1:8083 worker.properties")
    parser.add_argument("properties", nargs="?", metavar="worker.properties", help="with Kafka Connect's keys")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT,…", help="brokers, instead of the file's")
    parser.add_argument("--master", help="Spark's master (default: local[*])")
    parser.add_argument("--listen", metavar="HOST:PORT", help="of the REST interface (default: 127.0.0.1:8083)")
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _run(arguments))


def distributed_main(argv: Sequence[str] | None = None, prog: str = "connect-distributed") -> int:
    """With Kafka's arguments."""
    parser = CommandParser(prog, _DESCRIPTION, "{prog} config/connect-distributed.properties")
    parser.add_argument("properties", metavar="worker.properties", help="with Kafka Connect's keys")
    parser.set_defaults(bootstrap_server=None, master=None, listen=None)
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from moldau.pipelines.worker.config import WorkerConfig
    from moldau.pipelines.worker.worker import Worker

    _log_plainly()
    said = {"bootstrap.servers": arguments.bootstrap_server, "listeners": arguments.listen}
    given = load_properties(arguments.properties) | {name: value for name, value in said.items() if value}
    worker = Worker(WorkerConfig(given, Path.cwd()), arguments.master)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    print(f"worker: REST on {worker.url}", flush=True)
    worker.run()
    return 0


def _log_plainly() -> None:
    """Never what references stand for."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy, level in {"py4j": 30, "httpx": 30, "uvicorn": 30, "librdkafka": 40}.items():
        logging.getLogger(noisy).setLevel(level)


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hidden(super().format(record))

"""`moldau config-samples`: sample files to begin with, as Kafka has them in its `config/`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from moldau.cli.common import CommandParser, run
from moldau.errors import ConfigError


def main(argv: Sequence[str] | None = None, prog: str = "moldau config-samples") -> int:
    parser = CommandParser(
        prog,
        "Write sample files to a directory: server.properties, zookeeper.properties, "
        "producer.properties,\nconsumer.properties, log.properties, and those of Kafka Connect (connect-*.properties).",
        "{prog} config",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="created if it does not exist")
    parser.add_flag("--force", "replace existing files")
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _write(arguments.folder, force=arguments.force))


def _write(folder: Path, *, force: bool) -> int:
    samples = [each for each in resources.files("moldau.cli").joinpath("samples").iterdir() if each.is_file()]
    there = sorted(each.name for each in samples if (folder / each.name).exists())
    if there and not force:
        raise ConfigError(
            f"{folder} already contains {', '.join(there)}: choose another directory, or replace them with --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for sample in sorted(samples, key=lambda each: each.name):
        (folder / sample.name).write_bytes(sample.read_bytes())
        print(folder / sample.name)
    return 0

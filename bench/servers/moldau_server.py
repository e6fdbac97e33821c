"""Moldau as a user starts it: `moldau start server.properties`, in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.metrics import MOLDAU
from bench.servers.server import ServerProcess, write_properties
from moldau.version import __version__


class Moldau(ServerProcess):
    name = MOLDAU
    title = "Moldau"

    def __init__(self, directory: Path, *, cores: Sequence[int] | None = None, port: int | None = None) -> None:
        super().__init__(directory, cores=cores, port=port)
        self._properties_path = directory / "server.properties"

    @property
    def version(self) -> str:
        return __version__

    def prepare(self) -> None:
        write_properties(
            self._properties_path,
            {
                "node.id": 1,
                "listeners": f"PLAINTEXT://{self.bootstrap}",
                "log.dirs": self.data_directory,
                **self.extra,
            },
        )

    def command(self) -> list[str]:
        moldau = Path(sys.executable).with_name("moldau")
        # Errors only, as Apache Kafka here.
        return [str(moldau), "start", str(self._properties_path), "--log-level", "ERROR"]

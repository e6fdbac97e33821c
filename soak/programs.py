"""Programs under test: so many processes of one module, killed at random and started again."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass
class Programs:
    module: str
    count: int
    bootstrap: str
    rng: random.Random
    output: Path
    """What they all print, each write of theirs in one piece."""
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def keep_alive(self) -> None:
        for number in range(self.count):
            process = self.processes.get(number)
            if process is None or process.poll() is not None:
                self._start(number)

    def _start(self, number: int) -> None:
        with self.output.open("ab") as output:
            self.processes[number] = subprocess.Popen(
                [sys.executable, "-m", self.module, self.bootstrap, str(number), str(self.rng.randrange(2**32))],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill_one(self) -> None:
        process = self.processes[self.rng.randrange(self.count)]
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

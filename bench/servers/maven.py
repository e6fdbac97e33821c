"""Jars by Maven: fetched once into a cache folder, complete or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class MavenError(Exception):
    """Jars cannot be had; the message carries the end of what Maven said."""


@dataclass(frozen=True)
class Jars:
    """What a POM names, in a folder of the cache."""

    title: str
    folder: str
    pom: str

    @property
    def directory(self) -> Path:
        base = os.environ.get("XDG_CACHE_HOME")
        root = Path(base) if base else Path.home() / ".cache"
        return root / "moldau-bench" / self.folder

    @property
    def libs(self) -> Path:
        return self.directory / "libs"

    @property
    def are_here(self) -> bool:
        return (self.directory / "complete").exists()

    def obstacle(self, say: Callable[[str], None]) -> str | None:
        """Fetch them where they are not here; why they cannot be had or run, or None."""
        if shutil.which("java") is None:
            return "java is not installed"
        if self.are_here:
            return None
        if shutil.which("mvn") is None:
            return "Maven (mvn) is not installed, and the jars come by it"
        say(f"Maven fetches {self.title}")
        try:
            self.ensure()
        except MavenError as error:
            return str(error)
        return None

    def ensure(self) -> Path:
        """Their folder; they are fetched on first use."""
        if self.are_here:
            return self.libs
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "pom.xml").write_text(self.pom)
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={self.libs}"]
        command = ["mvn", "-q", "-B", *copy]
        answer = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            complaint = (answer.stdout + answer.stderr).strip()
            raise MavenError(f"Maven could not get {self.title}:\n{complaint[-2000:]}")
        # Written last, so that an interrupted download is not taken for a whole one.
        (self.directory / "complete").touch()
        return self.libs

"""Apache Kafka Streams as a yardstick of pipelines: its jars by Maven, and `Streams.java`, compiled once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.servers.maven import Jars

VERSION = "4.3.1"
SOURCE = Path(__file__).with_name("Streams.java")

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>moldau.bench</groupId>
  <artifactId>kafka-streams</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

JARS = Jars(f"Kafka Streams {VERSION}", f"kafka-streams-{VERSION}", POM)


def obstacle(say: Callable[[str], None]) -> str | None:
    """Why it cannot run here, or None."""
    if shutil.which("javac") is None:
        return "javac is not installed, and the Kafka Streams program has to be compiled"
    return JARS.obstacle(say)


def command(*arguments: object) -> list[str]:
    """The program with these arguments (see `Streams.java`), compiled on first use."""
    path = f"{_classes()}:{JARS.ensure()}/*"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", quiet, "-cp", path, "Streams", *map(str, arguments)]


def _classes() -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    folder = JARS.directory / f"classes-{digest}"
    if not (folder / "complete").exists():
        compile_it = ["javac", "-nowarn", "-d", str(folder), "-cp", f"{JARS.ensure()}/*", str(SOURCE)]
        subprocess.run(compile_it, check=True, capture_output=True)
        (folder / "complete").touch()
    return folder

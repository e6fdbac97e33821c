"""Folders of checkpoints: on this machine, or wherever Spark can write (hdfs://, s3a://, …)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.connectors.writers.hadoop_files import HadoopFiles
from moldau.pipelines.connectors.writers.unwritable import NEEDS_PERSON, unwritable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder(ABC):
    """Names of files are relative to it."""

    def __init__(self, location: str) -> None:
        self.location = location

    @abstractmethod
    def names(self, below: str = "") -> list[str]:
        """Of the files and folders in it, sorted; none if there is no such folder."""

    @abstractmethod
    def read(self, name: str) -> str | None:
        """None if there is no such file."""

    @abstractmethod
    def write(self, name: str, text: str) -> None:
        """Whole or not at all."""

    @abstractmethod
    def move_to(self, location: str) -> None:
        """Rename the folder; refused if there is one of that name."""


def open_folder(location: str, spark: SparkSession | None = None) -> Folder:
    if "://" not in location:
        return LocalFolder(location)
    if spark is None:
        from moldau.spark import session

        spark = session()
    return HadoopFolder(location, spark)


def checkpoints_in(folder: Folder) -> list[str]:
    """The names of the queries in the folder of a pipeline, without what `reset` has put aside under a time."""
    return [name for name in folder.names() if "." not in name]


class LocalFolder(Folder):
    @property
    def _path(self) -> Path:
        return Path(self.location)

    def names(self, below: str = "") -> list[str]:
        try:
            return sorted(path.name for path in (self._path / below).iterdir() if not path.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, text: str) -> None:
        path = self._path / name
        draft = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text, "utf-8")
        except OSError as error:
            if error.errno not in NEEDS_PERSON:
                raise
            raise ConfigError(unwritable(f"the checkpoint folder {self._path}", error)) from error
        draft.replace(path)

    def move_to(self, location: str) -> None:
        if Path(location).exists():
            raise ConfigError(f"cannot move {self.location}: {location} already exists")
        self._path.rename(location)


class HadoopFolder(Folder):
    """Wherever Spark can write."""

    def __init__(self, location: str, spark: SparkSession) -> None:
        super().__init__(location)
        self._files = HadoopFiles(spark, location)

    def names(self, below: str = "") -> list[str]:
        path = f"{self.location}/{below}" if below else self.location
        found = self._files.names(path) if self._files.exists(path) else []
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> str | None:
        path = f"{self.location}/{name}"
        return self._files.read(path) if self._files.exists(path) else None

    def write(self, name: str, text: str) -> None:
        self._files.write(f"{self.location}/{name}", text)

    def move_to(self, location: str) -> None:
        if self._files.exists(location):
            raise ConfigError(f"cannot move {self.location}: {location} already exists")
        self._files.rename(self.location, location)

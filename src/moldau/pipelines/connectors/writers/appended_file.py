"""Batches appended to a file, each exactly once, also for whoever reads the file meanwhile.

The lines of a batch are first written to a journal beside the file, in `.name.<query>/`, which is renamed to
`<batch>-<inode>-<size>` when it is complete. Then they are appended, and the journal becomes `<batch>-done`. A batch
that is repeated after a kill finds its journal: what the file has beyond the size in the journal's name is there
already, and the rest is appended.

Nobody else may append to the file, because sizes would no longer tell. A rotated file is another one by its inode; only
if a query is killed while it appends, and the file is rotated before it starts again, may lines come twice.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from moldau.pipelines.connectors.writers.unwritable import writing_to
from moldau.spark.options import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOURNAL = re.compile(r"(\d+)-(done|(\d+)-(\d+))")
_DONE = "-done"
_WRITE_BYTES = 1024 * 1024


class AppendedFile:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Rows of one column, the line."""
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or "batch"
        folder = self._path.with_name(f".{self._path.name}.{query}")
        with writing_to(str(self._path)), self._opened(folder) as file:
            journal = self._journal(folder, batch_id)
            if journal is None:
                status = os.fstat(file.fileno())
                journal = folder / f"{batch_id}-{status.st_ino}-{status.st_size}"
                _write_journal(journal, rows)
            if not journal.name.endswith(_DONE):
                _append_rest(journal, file)
                os.truncate(journal.replace(folder / f"{batch_id}{_DONE}"), 0)

    def _opened(self, folder: Path) -> BinaryIO:
        folder.mkdir(exist_ok=True)
        return open(self._path, "ab")

    def _journal(self, folder: Path, batch_id: int) -> Path | None:
        """Of this batch, if it was begun; those of earlier ones are deleted."""
        found = None
        for path in folder.iterdir():
            match = _JOURNAL.fullmatch(path.name)
            if match and int(match[1]) == batch_id:
                found = path
            else:
                path.unlink()
        return found


def _write_journal(journal: Path, rows: DataFrame) -> None:
    draft = journal.with_suffix(".draft")
    with open(draft, "wb", buffering=_WRITE_BYTES) as file:
        for (line,) in rows.toLocalIterator(prefetchPartitions=True):
            if line is not None:
                file.write(line.replace("\n", " ").encode() + b"\n")  # a line break in it would make it two
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, journal)


def _append_rest(journal: Path, file: BinaryIO) -> None:
    _, inode, size_before = (int(part) for part in journal.name.split("-"))
    status = os.fstat(file.fileno())
    is_same = status.st_ino == inode and status.st_size >= size_before
    with open(journal, "rb") as lines:
        lines.seek(status.st_size - size_before if is_same else 0)
        shutil.copyfileobj(lines, file, _WRITE_BYTES)
    file.flush()
    os.fsync(file.fileno())

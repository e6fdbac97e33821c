"""Checkpoints that move with the active worker: a copy in the offset topic before each micro-batch.

The checkpoint of a query without state is a few small files. Before a micro-batch is written, the worker copies them in
one fenced transaction. A new active worker restores the folder from it, so that Spark repeats the same batch, with the
same query id, number and range: for exactly-once sinks that is no different from a restart on the same machine. A
worker that was replaced cannot record another batch, so all it can still write is this one.

A copy is taken before the batch, so it says what Spark had planned, never that it was done. When a query rests or ends,
there is another one, which says that: the next worker repeats nothing then.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.engine.checkpoints.checkpoint import FILE, MoldauFile
from moldau.pipelines.engine.supervisor import Listener, RunningQuery
from moldau.pipelines.worker.records import Record, checkpoint_record
from moldau.pipelines.worker.state_topics import FencedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COPY_BYTES_MAX = 900_000  # of all files together: a record of 1 MB is the most that topics take by default
_LOGS = ("offsets", "commits")
_NOT_COPIED = ("state", "state_meta")

Write = Callable[[Sequence[Record]], None]


class CheckpointCopies(Listener):
    """Of the queries of one connector. `write` writes to the state topics, or raises."""

    def __init__(self, write: Write, *, is_shared: bool) -> None:
        """`is_shared`: all workers see the folder itself, so only the number of the batch is written, as a fence."""
        self._write = write
        self._is_shared = is_shared
        self._begun: dict[str, int] = {}  # by query: a batch that is not yet known to be done
        self._lock = threading.Lock()

    def admitted(self, spark: SparkSession, query: RunningQuery) -> None:
        if self._is_shared:
            return
        path = Path(query.checkpoint) / FILE
        identity = MoldauFile.parse(path.read_text("utf-8") if path.exists() else None, str(path)).identity
        if identity is not None and identity.operators:
            raise ConfigError(
                f"query {query.name} keeps state (a join, an aggregation or the like), which is too large for the "
                "worker's offset topic: set moldau.checkpoint.dir to a folder or URL that all workers share"
            )

    def before_batch(self, query: RunningQuery, batch_id: int) -> None:
        with self._lock:
            self._begun[query.name] = batch_id
            self._put(query, batch_id)

    def polled(self, queries: Sequence[RunningQuery]) -> None:
        for query in queries:
            self._put_if_done(query)

    def ended(self, queries: Sequence[RunningQuery]) -> None:
        for query in queries:
            self._put_if_done(query)

    def _put_if_done(self, query: RunningQuery) -> None:
        """Under the lock: a batch that begins meanwhile must not be followed by a copy of the one before."""
        with self._lock, suppress(FencedError):  # then the new active worker knows the batch, and repeats it
            batch_id = self._begun.get(query.name)
            if batch_id is not None and (Path(query.checkpoint) / f"commits/{batch_id}").exists():
                del self._begun[query.name]
                self._put(query, batch_id)

    def _put(self, query: RunningQuery, batch_id: int) -> None:
        files = {} if self._is_shared else _copied(Path(query.checkpoint), batch_id)
        self._write([checkpoint_record(query.pipeline, query.name, {"batch": batch_id, "files": files})])


def restore(folder: Path, copies: Mapping[str, Mapping[str, Any]]) -> None:
    """The checkpoints of a connector's queries as they were copied, in place of what is there."""
    for query, copy in copies.items():
        if not copy.get("files"):
            continue
        place = folder / query
        if place.parent != folder:
            raise ConfigError(f"the offset topic has a checkpoint with the name {query!r}")
        shutil.rmtree(place, ignore_errors=True)
        for name, text in copy["files"].items():
            path = (place / name).resolve()
            if not path.is_relative_to(place.resolve()):
                raise ConfigError(f"the checkpoint of {query} in the offset topic has a file {name!r} outside of it")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def _copied(folder: Path, batch_id: int) -> dict[str, str]:
    """The last two batches, as Spark needs the one before to know where the last one begins, and all other files."""
    files = {}
    for name in (f"{log}/{batch}" for log in _LOGS for batch in (batch_id - 1, batch_id)):
        path = folder / name
        if path.exists():
            files[name] = path.read_text("utf-8")
    for path in _other_files(folder):
        files[str(path.relative_to(folder))] = path.read_text("utf-8")
    size = sum(map(len, files.values()))
    if size > COPY_BYTES_MAX:
        raise ConfigError(
            f"the checkpoint {folder.name} has {size} bytes, more than the {COPY_BYTES_MAX} that fit into a record of "
            "the offset topic: set moldau.checkpoint.dir to a folder or URL that all workers share"
        )
    return files


def _other_files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name in (*_LOGS, *_NOT_COPIED):
            continue
        if entry.is_file():
            yield entry
        else:
            yield from (path for path in sorted(entry.rglob("*")) if path.is_file() and not path.name.startswith("."))

"""What Spark keeps in the checkpoint of a query: the offsets of each batch and which batches were finished.

    offsets/7     v2                                    written before batch 7 starts
                  {"batchWatermarkMs": …, "batchTimestampMs": …, "conf": {…}}
                  clicks:{"clicks": {"0": 123}}         the end of the batch, by the name of the source
    commits/7     v1                                    written when batch 7 is finished
                  {"nextBatchWatermarkMs": …}
    metadata      {"id": "…"}                           the id of the query
    state/0/…     of stateful operators

Version 1 of the offsets has no names: its lines are in the order of the sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.engine.checkpoints.folders import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class LoggedBatch:
    """The last batch of a query that was started."""

    batch_id: int
    is_finished: bool
    offsets: Mapping[str, str]  # by source, as JSON: where the batch ends
    starts: Mapping[str, str]  # where it starts
    watermark_ms: int  # of the next batch
    timestamp_ms: int  # when it started
    conf: Mapping[str, str]  # of Spark's settings, those that cannot change

    @property
    def positions(self) -> Mapping[str, str]:
        """Up to where records are processed."""
        return self.offsets if self.is_finished else self.starts


class CheckpointLog:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    @property
    def query_id(self) -> str | None:
        text = self.folder.read("metadata")
        return json.loads(text)["id"] if text else None

    @property
    def has_state(self) -> bool:
        return bool(self.folder.names("state"))

    @cached_property
    def last_batch(self) -> LoggedBatch | None:
        started = self._batches("offsets")
        if not started:
            return None
        batch_id = started[-1]
        finished = self._batches("commits")
        is_finished = bool(finished) and finished[-1] >= batch_id
        metadata, offsets = self._offsets(batch_id)
        commit = self.folder.read(f"commits/{finished[-1]}") if finished else None
        next_watermark_ms = json.loads(commit.split("\n")[1]).get("nextBatchWatermarkMs", 0) if commit else 0
        return LoggedBatch(
            batch_id,
            is_finished,
            offsets,
            self._offsets(batch_id - 1)[1] if batch_id - 1 in started else {},
            max(metadata.get("batchWatermarkMs", 0), next_watermark_ms),
            metadata.get("batchTimestampMs", 0),
            metadata.get("conf", {}),
        )

    def add_empty_batch(self, spark: SparkSession) -> None:
        """Have Spark run a batch without rows when the query starts, in the place of the next one.

        Spark emits what the watermark has passed only after a batch. After a restart there is none until a row comes.
        """
        last = self.last_batch
        if last is None or not last.is_finished:
            return  # there is a batch to repeat
        lines = (self.folder.read(f"offsets/{last.batch_id}") or "").split("\n")
        metadata = json.loads(lines[1]) | {"batchWatermarkMs": last.watermark_ms}
        text = "\n".join([lines[0], json.dumps(metadata, separators=(",", ":")), *lines[2:]])
        jvm: Any = spark._jvm
        package = jvm.org.apache.spark.sql.execution.streaming.checkpointing
        log = package.OffsetSeqLog(spark._jsparkSession, f"{self.folder.location}/offsets", False)
        log.add(last.batch_id + 1, log.deserialize(jvm.java.io.ByteArrayInputStream(text.encode())))

    def _batches(self, log: str) -> list[int]:
        return sorted(int(name) for name in self.folder.names(log) if name.isdecimal())

    def _offsets(self, batch_id: int) -> tuple[dict[str, Any], dict[str, str]]:
        where = f"{self.folder.location}/offsets/{batch_id}"
        version, _, rest = (self.folder.read(f"offsets/{batch_id}") or "").partition("\n")
        metadata, *lines = rest.rstrip("\n").split("\n")
        try:
            if version not in ("v1", "v2"):
                raise ValueError(version)
            named = (line.partition(":") for line in lines) if version == "v2" else _numbered(lines)
            return json.loads(metadata), {name: offset for name, _, offset in named if offset != "-"}
        except ValueError as error:
            raise ConfigError(f"{where} is not an offset log of Spark: the checkpoint is damaged") from error


def _numbered(lines: list[str]) -> list[tuple[str, str, str]]:
    return [(str(at), ":", line) for at, line in enumerate(lines)]

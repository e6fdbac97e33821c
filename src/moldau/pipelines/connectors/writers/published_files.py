"""Batches as files, each exactly once, for any reader of the directory.

The files of a batch are written aside, to `_moldau/<query>-<sink>/<batch>`. When all are complete they are renamed to
where readers see them, under names of query, batch and task. Readers ignore names that begin with an underscore, as
Spark's and Hive's do. A batch that is repeated continues where it was interrupted:

- not all files were complete: none was renamed, and they are written again;
- they were complete: those that were not renamed yet are;
- all were renamed: the file `<batch>.done` beside it says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.writers.hadoop_files import HadoopFiles
from moldau.pipelines.connectors.writers.unwritable import writing_to
from moldau.spark.options import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASIDE = "_moldau"
COMPLETE = "_SUCCESS"  # Spark writes it when all tasks are done
_PART = re.compile(r"part-(\d+)-[0-9a-f-]{36}(?:[-.]c(\d+))?(.*)")


@dataclass(frozen=True)
class PublishedFiles:
    directory: str
    name: str  # files begin with it
    format: str
    partition_by: tuple[str, ...]
    files_max: int | None
    options: Mapping[str, str]

    def write(self, rows: DataFrame, batch_id: int) -> None:
        with writing_to(self.directory if "://" in self.directory else os.path.abspath(self.directory)):
            self._write(rows, batch_id)

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or "batch"
        base = f"{self.directory}/{ASIDE}/{query}-{self.name}"
        files = HadoopFiles(rows.sparkSession, self.directory)
        aside, done = f"{base}/{batch_id}", f"{base}/{batch_id}.done"
        if not files.exists(done):
            if not files.exists(f"{aside}/{COMPLETE}"):
                files.delete(aside)
                if not self._write_aside(rows, aside):
                    files.delete(aside)  # of no rows, Parquet makes a file, too
            self._publish(files, aside, f"{self.name}-{query[:8]}-{batch_id:09d}")
            files.create(done)
        files.delete(aside)
        files.delete(f"{base}/{batch_id - 1}.done")

    def _write_aside(self, rows: DataFrame, aside: str) -> int:
        """Returns the number of rows."""
        if self.files_max is not None:
            rows = rows.coalesce(self.files_max)
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        count = Observation()
        rows = rows.observe(count, F.count(F.lit(1)).alias("rows"))
        if self.format == "avro":
            from moldau.pipelines.connectors.writers.avro_files import write_avro

            write_avro(rows, aside, self.partition_by, self.options.get("compression", "deflate"))
        else:
            rows.write.format(self.format).options(**self.options).partitionBy(*self.partition_by).save(aside)
        return int(count.get["rows"])

    def _publish(self, files: HadoopFiles, aside: str, prefix: str) -> None:
        for path in files.below(aside) if files.exists(aside) else ():
            folder, _, file = path.rpartition("/")
            part = _PART.fullmatch(file)
            if part is None:
                continue
            piece = f"-{int(part[2])}" if part[2] and int(part[2]) else ""
            target = "/".join(filter(None, (self.directory, folder, f"{prefix}-{part[1]}{piece}{part[3]}")))
            if files.exists(target):  # copied, and killed before the original was deleted
                files.delete(f"{aside}/{path}")
            else:
                files.rename(f"{aside}/{path}", target)

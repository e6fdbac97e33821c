"""Files wherever Spark can write: a local path, hdfs://, s3a:// and others, through Hadoop in Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from moldau.errors import MoldauError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """The file system of a path, with the settings that Spark has for it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm = cast("Any", spark._jvm)
        self._new_path: Any = self._jvm.org.apache.hadoop.fs.Path
        jsc: Any = spark.sparkContext._jsc
        self._configuration = jsc.hadoopConfiguration()
        self._files = self._new_path(path).getFileSystem(self._configuration)

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._new_path(path)))

    def create(self, path: str) -> None:
        self._files.create(self._new_path(path), True).close()

    def delete(self, path: str) -> None:
        self._files.delete(self._new_path(path), True)

    def read(self, path: str) -> str:
        stream = self._files.open(self._new_path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Whole or not at all, as Spark writes the files of checkpoints."""
        target = self._new_path(path)
        self._files.mkdirs(target.getParent())
        package = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
        manager = package.CheckpointFileManager.create(target.getParent(), self._configuration)
        stream = manager.createAtomic(target, True)
        try:
            stream.write(text.encode())
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def rename(self, source: str, target: str) -> None:
        path = self._new_path(target)
        self._files.mkdirs(path.getParent())
        if not self._files.rename(self._new_path(source), path):
            raise MoldauError(f"cannot rename {source} to {target}")

    def names(self, folder: str) -> list[str]:
        """Of the files and folders in it."""
        return [status.getPath().getName() for status in self._files.listStatus(self._new_path(folder))]

    def below(self, folder: str) -> Iterator[str]:
        """Paths of all files with something in them, relative to the folder."""
        root = self._files.makeQualified(self._new_path(folder))
        found = self._files.listFiles(root, True)
        paths = []
        while found.hasNext():
            status = found.next()
            if status.getLen():
                paths.append(root.toUri().relativize(status.getPath().toUri()).getPath())
        return iter(sorted(paths))

"""Checkpoints on the local disk without a process for each file.

Hadoop sets the permissions of every file and folder that it creates by running `chmod`, unless its native library is
installed, which Spark does not have. A micro-batch with state creates about ten files: that took a third of its CPU.
Here Hadoop's local file system is replaced by one that does the same with a system call. It is Hadoop's own class with
one method overridden, compiled by the compiler that Spark has for generated code. It writes no `.crc` files beside
Hadoop's: Spark has checksums of its own for checkpoints, and a kill between the two files would leave a wrong one.

Hadoop keeps one object per kind of file system in each JVM. So it is put there, and Spark is told to use that one.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
# The other one, Spark's default, has a local file system of its own.
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_CLASS = "moldau.LocalFiles"
_SOURCE = """
package moldau;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
    setWriteChecksum(false);
  }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
        return;
      }
      String text = permission.getUserAction().SYMBOL
          + permission.getGroupAction().SYMBOL
          + permission.getOtherAction().SYMBOL;
      Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
    }
  }
}
"""
_lock = threading.Lock()


def local_file_settings(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Settings for a query with this checkpoint: none where they do not fit, as on a cluster."""
    if "://" in checkpoint or os.name != "posix" or not str(spark.sparkContext.master).startswith("local"):
        return {}
    try:
        with _lock:
            _install(spark)
    except Exception:  # it works without, too
        logger.debug("Hadoop's own local file system stays", exc_info=True)
        return {}
    return {_FILE_MANAGER: _BY_FILE_SYSTEM}


def _install(spark: SparkSession) -> None:
    java: Any = spark._jvm
    file_system = java.org.apache.hadoop.fs.FileSystem
    hadoop: Any = spark._jsc.hadoopConfiguration()
    uri = java.java.net.URI("file:///")
    current = file_system.get(uri, hadoop)
    if current.getClass().getName() == _CLASS:
        return
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE)
    ours = java.org.apache.hadoop.conf.Configuration(hadoop)
    ours.setClassLoader(compiler.getClassLoader())
    ours.set("fs.file.impl", _CLASS)
    current.close()  # this takes it out of Hadoop's cache; who has it can still use it
    file_system.get(uri, ours)

"""The process that Spark forks its Python workers from: PySpark's own, with what a task needs imported before the fork.

Spark starts it as `python -m moldau.spark.daemon pyspark.worker` (`spark.python.daemon.module`), once on each executor.
PySpark's daemon imports nothing before it forks, so each worker loads Arrow, the compiled kernels and this package for
itself: half a second, and memory that is not shared. None of them starts a thread when it is imported: a fork
would leave it behind.

Spark also puts a zip file with PySpark on the path, out of which Python compiles every module anew, in every process.
Where the same version is installed, that is used instead.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import BadZipFile, ZipFile

_PRELOADED = ("pyspark.worker", "moldau.spark.source", "moldau.spark.fetching", "moldau.spark.writers")


def prefer_installed_pyspark() -> None:
    try:
        installed = Path(str(distribution("pyspark").locate_file("pyspark/version.py"))).read_bytes()
    except (PackageNotFoundError, OSError):
        return
    for entry in list(sys.path):
        if Path(entry).name == "pyspark.zip":
            with suppress(OSError, KeyError, BadZipFile), ZipFile(entry) as archive:
                if archive.read("pyspark/version.py") == installed:
                    sys.path.remove(entry)


def main() -> None:
    prefer_installed_pyspark()
    from pyspark.daemon import manager

    for module in _PRELOADED:
        # A worker that needs it fails with the reason; others have no use for it.
        with suppress(Exception):
            importlib.import_module(module)
    manager()


if __name__ == "__main__":
    main()

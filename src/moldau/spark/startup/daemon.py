"""The process that Spark forks its Python workers from: PySpark's own, with what they need imported before the fork.

Spark starts it as `python -m moldau.spark.startup.daemon pyspark.worker` (`spark.python.daemon.module`), once on each
executor. PySpark's daemon imports nothing before it forks, so each worker loads Arrow, the compiled kernels
and this package for itself: half a second, and memory that is not shared. A fork leaves threads behind (Python 3.12
warns of it), so nothing here may start one: Spark tells numpy's libraries, and we tell Arrow's spare allocator.

Spark also puts a zip file with PySpark on the path, out of which Python compiles every module anew, in every process.
Where the same version is installed, that is used instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from moldau.spark.hang_ups import ignore_hang_ups
from moldau.spark.startup.end_signals import shield_daemon, shield_process

_MODULES = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "moldau.spark.data_source",
    "moldau.spark.source.projection",
    "moldau.spark.source.batch_reader",
    "moldau.spark.source.stream_reader",
    "moldau.spark.source.fetching",
    "moldau.spark.sink.writers",
    "moldau.spark.sink.row_sink",
    "kio.serial",
    "encodings.idna",  # by which socket.connect() turns a host into bytes
    "numpy.ma",
    "pandas",  # by Arrow, when the first array is made of Python's values
    "kio.schema.index",
    "kio.schema.errors",
)
# The messages of source and sink, as recent brokers speak them: each takes milliseconds to load. Of Fetch and
# OffsetCommit earlier versions are loaded, too, for fields that the later ones do not have.
_SCHEMAS = {
    "add_offsets_to_txn": (3,),
    "add_partitions_to_txn": (3,),
    "api_versions": (4,),
    "end_txn": (1,),
    "fetch": range(12, 19),
    "find_coordinator": (6,),
    "init_producer_id": (4,),
    "list_offsets": (11,),
    "metadata": (13,),
    "offset_commit": range(4, 11),
    "offset_fetch": (7,),
    "produce": (8,),
    "txn_offset_commit": (3,),
}
# Arrow loads jemalloc with a thread of its own, even where another allocator is in use, as is usual.
_NO_ARROW_THREAD = ("JE_ARROW_MALLOC_CONF", "background_thread:false")


def preload() -> None:
    """Imports what workers import. What cannot be is left to the worker that needs it: it fails with the reason."""
    os.environ.setdefault(*_NO_ARROW_THREAD)
    schemas = (
        f"kio.schema.{api}.v{version}.{kind}"
        for api, versions in _SCHEMAS.items()
        for version in versions
        for kind in ("request", "response")
    )
    for module in (*_MODULES, *schemas):
        with suppress(ImportError):
            importlib.import_module(module)
    ignore_hang_ups()
    if pyspark_daemon := sys.modules.get("pyspark.daemon"):
        shield_daemon(pyspark_daemon)
    os.register_at_fork(after_in_child=_reseed)


def _reseed() -> None:
    """Python's own random numbers differ after a fork; numpy's would be the same in every worker."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


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
    shield_process(forks_too=True)
    prefer_installed_pyspark()
    preload()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()

"""A Spark for this process: the right Java and Python, a quick start, a quiet screen, and the data source registered.

What is set, and why, stands beside each setting below; whatever the user passes wins. The settings of a local master
(everything in one JVM of ours) are not given to a cluster: there, ports, memory and shuffles are its own affair. Its
executors need a Python with moldau[spark] installed, at the path in `PYSPARK_PYTHON`.

`short_job` trades speed for a start: with Java's quick compiler alone, a first result needs half the CPU, and rows then
cost the JVM twice as much. Without it the optimizing compiler waits until a method has run ten times longer than
it usually would: code that runs once is not worth its while, and the hot loops still get it within a second or two.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.spark import register
from moldau.spark.hang_ups import ignore_hang_ups_in
from moldau.spark.options import option_text
from moldau.spark.startup.class_data import archive_options, cache_folder
from moldau.spark.startup.gateway import can_start_directly, spark_package, start_gateway
from moldau.spark.startup.java import find_java, home_for_scripts
from moldau.spark.startup.warm_python import WarmPython, start_warm_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_LOG4J = Path(__file__).with_name("log4j2.properties")

_QUICK_COMPILER = ("-XX:TieredStopAtLevel=1",)
_LATE_OPTIMIZER = tuple(
    f"-XX:Tier4{name}={10 * usual}"
    for name, usual in (
        ("InvocationThreshold", 5_000),
        ("MinInvocationThreshold", 600),
        ("CompileThreshold", 15_000),
        ("BackEdgeThreshold", 40_000),
    )
)


def get_or_create(
    app_name: str = "moldau",
    master: str = "local[*]",
    *,
    ui: bool = False,
    short_job: bool = False,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """The running session, or a new one, with `format("moldau")` ready to use."""
    asked = {name: option_text(value) for name, value in (config or {}).items()}
    master = asked.get("spark.master", master)
    running = _running_session()
    if running is not None:
        _apply(running, {"spark.master": master, **asked} if master != "local[*]" else asked)
        return register(running)
    spark_package()  # before anything is started, an error where PySpark is not installed
    is_local = master.startswith("local")
    _set_python(is_local)
    settings = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.ui.enabled": option_text(ui),
        "spark.python.daemon.module": "moldau.spark.startup.daemon",
        **(_local_settings(master) if is_local else {}),
        **asked,
    }
    return register(_start(settings, short_job and is_local))


def _start(settings: dict[str, str], short_job: bool) -> SparkSession:
    gateway = None
    if not _has_jvm():
        java = find_java()
        is_direct = can_start_directly(settings)
        archive = archive_options(java) if is_direct else []
        options = [*archive, *_java_options(settings, short_job), f"-Dlog4j2.configurationFile={_LOG4J}"]
        settings = {"spark.driver.defaultJavaOptions": shlex.join(options), **settings}
        if is_direct:
            gateway = start_gateway(java, settings)
        else:
            os.environ["JAVA_HOME"] = str(home_for_scripts(java, cache_folder()))
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if gateway is not None:
        SparkContext._ensure_initialized(gateway=gateway)
    session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    ignore_hang_ups_in(session.sparkContext._accumulatorServer)
    return session


def _has_jvm() -> bool:
    """A JVM outlives the sessions in it. PySpark's import takes long enough to let the JVM start meanwhile."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def _java_options(settings: Mapping[str, str], short_job: bool) -> list[str]:
    if not settings["spark.master"].startswith("local"):
        return []
    options = [*(_QUICK_COMPILER if short_job else _LATE_OPTIMIZER)]
    # Two collectors asked for is an error to Java, so a user's own replaces ours.
    if short_job and not re.search(r"-XX:\+Use\w+GC\b", settings.get("spark.driver.extraJavaOptions", "")):
        options.append("-XX:+UseSerialGC")
    return options


def _local_settings(master: str) -> dict[str, str]:
    return {
        # No name of this machine has to resolve, and nobody outside can connect.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # 200, the default, is for a cluster: here each is a task of milliseconds, and in a stream a file of state.
        "spark.sql.shuffle.partitions": str(_cores(master)),
        # A fifth less CPU for each row that passes between the JVM and Python than with TCP.
        "spark.python.unix.domain.socket.enabled": "true",
        # Its bar would be drawn over what the user prints.
        "spark.ui.showConsoleProgress": "false",
        # Spark's default is a folder in the current one. Tables end with the session, as its catalog does.
        "spark.sql.warehouse.dir": _temporary_folder("warehouse"),
    }


def _cores(master: str) -> int:
    """2 of local[2] and of local[2,3]; all there are of local[*]."""
    threads = re.fullmatch(r"local\[(\d+)(?:\s*,.*)?\]", master)
    if threads is not None:
        return max(int(threads[1]), 1)
    return 1 if master == "local" else os.cpu_count() or 1


def _set_python(is_local: bool) -> None:
    """Workers run this Python. On a cluster its path may be another, which the environment then says."""
    if is_local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = _warm_python().script
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


@cache
def _warm_python() -> WarmPython:
    return start_warm_python(Path(_temporary_folder("python")))


def _running_session() -> SparkSession | None:
    if not _has_jvm():
        return None
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if running is None or running.sparkContext._jsc is None:
        return None
    return running


def _apply(spark: SparkSession, asked: Mapping[str, str]) -> None:
    """What a session that runs can still take; a word about the rest."""
    for name, value in asked.items():
        if spark.conf.get(name, None) == value:
            continue
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
        else:
            logger.warning("a Spark session runs already: %s=%s needs a new one (spark.stop() first)", name, value)


def _temporary_folder(name: str) -> str:
    folder = tempfile.mkdtemp(prefix=f"moldau-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

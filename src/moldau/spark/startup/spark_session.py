"""A Spark session: the right Java and Python, a fast start, a quiet screen, and the data source registered.

What is set, and why, stands beside each setting below; the user's settings win. The settings of a local master
(everything in one JVM of ours) are not given to a cluster, which has its own ports, memory and shuffles. Its executors
need a Python with moldau[spark] installed, at the path in `PYSPARK_PYTHON`.

Two things make the start fast: the class archive (`class_archive`), if one was made, and the fork server
(`fork_server`). `spark.moldau.fastStart=false`, or `MOLDAU_FAST_START=false` in the environment, turns both off.

`short_job` trades throughput for a fast start: with Java's quick compiler alone, a first result needs half the CPU, but
rows then cost the JVM twice as much. Without it the optimizing compiler waits until a method has run ten times longer
than usual: it skips code that runs once, and still compiles hot loops within a second or two.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.spark import register
from moldau.spark.hang_ups import ignore_hang_ups_in
from moldau.spark.options import option_text
from moldau.spark.startup.class_archive import archive_options, spark_package
from moldau.spark.startup.fork_server import ForkServer, start_fork_server
from moldau.spark.startup.java import end_java, find_java, home_for_scripts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

FAST_START = "spark.moldau.fastStart"
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
    spark_package()  # raises, before anything is started, if PySpark is not installed
    is_local = master.startswith("local")
    fast_start = _is_fast_start(asked)
    _set_python(is_local and fast_start)
    settings = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.ui.enabled": option_text(ui),
        "spark.python.daemon.module": "moldau.spark.startup.daemon",
        **(_local_settings(master) if is_local else {}),
        **asked,
    }
    return register(_start(settings, short_job=short_job and is_local, fast_start=fast_start))


def _is_fast_start(asked: Mapping[str, str]) -> bool:
    value = asked.get(FAST_START, os.environ.get("MOLDAU_FAST_START") or "true").lower()
    if value not in ("true", "false"):
        raise ConfigError(
            f"{FAST_START} (or MOLDAU_FAST_START in the environment) is {value!r}: expected true or false"
        )
    return value == "true"


def _start(settings: dict[str, str], *, short_job: bool, fast_start: bool) -> SparkSession:
    home: Path | None = None
    if not _has_jvm():
        java = find_java()
        archive = archive_options(java) if fast_start else []
        options = [*archive, *_java_options(settings, short_job), f"-Dlog4j2.configurationFile={_LOG4J}"]
        settings = {"spark.driver.defaultJavaOptions": shlex.join(options), **settings}
        home = home_for_scripts(java, Path(_temporary_folder("java")))
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    _look_for_numpy_first()
    try:
        with _environment({"JAVA_HOME": str(home)} if home is not None else {}):
            session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except BaseException as error:
        # A JVM whose start is interrupted (Ctrl-C) cannot tell PySpark its port, and would run for ever.
        if home is not None and not _has_jvm():
            end_java(home)
        if isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED":
            raise ConfigError(
                "Java ended while Spark was starting; what it printed is above. Check the options that it was given "
                "(spark.driver.extraJavaOptions, spark.driver.memory, JAVA_TOOL_OPTIONS)"
            ) from error
        raise
    ignore_hang_ups_in(session.sparkContext._accumulatorServer)
    return session


@cache
def _look_for_numpy_first() -> None:
    """PySpark imports pandas, by way of its helpers for tests, to find out whether the first value that is passed to
    the JVM is one of numpy's. A value that has no class of numpy is none, which takes no third of a second to say."""
    from pyspark.sql import types

    def quick(asked: Callable[[Any, object], bool]) -> Callable[[Any, object], bool]:
        def can_convert(self: Any, value: object) -> bool:
            return any(base.__module__.startswith("numpy") for base in type(value).__mro__) and asked(self, value)

        return can_convert

    converters: tuple[Any, ...] = (types.NumpyScalarConverter, types.NumpyArrayConverter)
    for converter in converters:
        converter.can_convert = quick(converter.can_convert)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: before[name] for name in variables.keys() & before.keys()})


def _has_jvm() -> bool:
    """Whether this process has started Spark's JVM: it outlives the sessions in it."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def _java_options(settings: Mapping[str, str], short_job: bool) -> list[str]:
    if not settings["spark.master"].startswith("local"):
        return []
    options = [*(_QUICK_COMPILER if short_job else _LATE_OPTIMIZER)]
    # Java fails if two collectors are chosen, so a user's own replaces ours.
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
        # The progress bar would be drawn over the user's output.
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


def _set_python(use_fork_server: bool) -> None:
    """Workers run this Python. On a cluster its path may differ; then the environment says it."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if use_fork_server:
            _python_before.setdefault(name, os.environ.get(name, sys.executable))
            os.environ[name] = _fork_server().script
        else:  # after a session with a fork server: executors of a cluster do not have its script
            os.environ[name] = _python_before.pop(name, os.environ.get(name, sys.executable))


_python_before: dict[str, str] = {}
"""Of the environment, while a fork server takes its place."""


@cache
def _fork_server() -> ForkServer:
    return start_fork_server(Path(_temporary_folder("python")))


def _running_session() -> SparkSession | None:
    if not _has_jvm():
        return None
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if running is None or running.sparkContext._jsc is None:
        return None
    return running


def _apply(spark: SparkSession, asked: Mapping[str, str]) -> None:
    """Set what a running session can still change; log a warning for the rest."""
    for name, value in asked.items():
        if spark.conf.get(name, None) == value:
            continue
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
        else:
            logger.warning(
                "a Spark session is already running: %s=%s needs a new one (call spark.stop() first)", name, value
            )


def _temporary_folder(name: str) -> str:
    folder = tempfile.mkdtemp(prefix=f"moldau-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

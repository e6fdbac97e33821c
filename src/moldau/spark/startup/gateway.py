"""Starts the JVM of Spark's driver, directly.

PySpark runs `bin/spark-submit`, a shell script that starts one JVM to print the command line of another. That costs
half a second, and the script's SPARK_HOME makes every Python worker import PySpark out of a zip file, compiled anew in
each of them: another second for each. Here the one command is put together from the same parts: the class path, the
module options of this Spark's launcher (read from its class file, so they are never out of date), the driver's memory
and Java options. The handshake is PySpark's own: the JVM writes its port and secret into a file of ours, and dies when
our end of its standard input closes.

An installation that has settings of its own (`SPARK_HOME`, `SPARK_CONF_DIR`, `PYSPARK_SUBMIT_ARGS`) is left to
PySpark's way: these are for its scripts to read.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from moldau.errors import ConfigError
from moldau.spark.startup.java import VECTOR_MODULE, Java

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

# A JVM that is up takes about a second to say so; a machine with that much load has other troubles.
JVM_START_TIMEOUT_S = 120
_POLL_S = 0.01
OWN_SETTINGS = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_DIST_CLASSPATH")
# Needs the environment of the process changed in a way that differs by platform: spark-submit knows how.
_FOR_SPARK_SUBMIT = ("spark.driver.extraLibraryPath", "spark.submit.deployMode")


def spark_package() -> Path:
    """Where the pyspark package is, with Spark's jars; found without its import, which takes a while."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigError("PySpark is not installed: install Moldau with its extra 'spark'")
    return Path(found.origin).parent


def can_start_directly(config: Mapping[str, str]) -> bool:
    package = spark_package()
    return not (
        sys.platform == "win32"
        or any(os.environ.get(name) for name in OWN_SETTINGS)
        or any(name in config for name in _FOR_SPARK_SUBMIT)
        or (package / "conf").exists()
        or not module_options(package)
    )


def start_gateway(java: Java, config: Mapping[str, str]) -> JavaGateway:
    """The JVM with this configuration, started and connected to."""
    with tempfile.TemporaryDirectory(prefix="moldau-spark-") as folder:
        answer = Path(folder) / "connection"
        # The JVM is to outlive an interrupt (Ctrl-C) of a running query: it gets a process group of its own.
        process = subprocess.Popen(
            java_command(java, config), stdin=subprocess.PIPE, env=_environment(java, answer), process_group=0
        )
        try:
            import pyspark.sql  # noqa: F401 -- takes as long as the JVM needs; both at the same time

            port, secret = _connection(process, answer)
        except BaseException:  # a JVM that finds no folder for its answer would never end
            process.kill()
            process.wait()
            raise
    return _connect(process, port, secret)


def java_command(java: Java, config: Mapping[str, str]) -> list[str]:
    """What spark-submit would run in the end."""
    jars = spark_package() / "jars"
    # Spark's launcher puts slf4j's API first, too.
    class_path = [config.get("spark.driver.extraClassPath", ""), *map(str, jars.glob("slf4j-api-*.jar")), f"{jars}/*"]
    return [
        str(java.home / "bin" / "java"),
        "-cp",
        os.pathsep.join(filter(None, class_path)),
        f"-Xmx{config.get('spark.driver.memory', '1g')}",
        *shlex.split(config.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(config.get("spark.driver.extraJavaOptions", "")),
        *(flag for flag in module_options(spark_package()) if _is_quiet(flag, java)),
        "org.apache.spark.deploy.SparkSubmit",
        *(word for name, value in config.items() for word in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]


@cache
def module_options(package: Path) -> tuple[str, ...]:
    """The constants of Spark's class `JavaModuleOptions`: the flags without which Spark does not run on Java 17."""
    launchers = list((package / "jars").glob("spark-launcher_*.jar"))
    if len(launchers) != 1:
        return ()
    with ZipFile(launchers[0]) as jar:
        constants = jar.read("org/apache/spark/launcher/JavaModuleOptions.class")
    return tuple(flag.decode() for flag in re.findall(rb"(?:--[a-z]|-XX:|-D)[!-~]+", constants))


def _is_quiet(flag: str, java: Java) -> bool:
    """Two flags would put a warning on every user's screen: the vector module, which Java announces as incubating and
    only MLlib has a use for (`spark.driver.extraJavaOptions` can ask for it), and a package that Java 24 took away."""
    return VECTOR_MODULE not in flag and not (java.feature_version >= 24 and "sun.security.action" in flag)


def _environment(java: Java, answer: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),  # all workers have to hash alike
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer),
    }


def _connection(process: subprocess.Popen[bytes], answer: Path) -> tuple[int, str]:
    """The JVM's port and secret: it renames the file into place when all is in it."""
    deadline = time.monotonic() + JVM_START_TIMEOUT_S
    while not answer.exists():
        if process.poll() is not None:
            raise ConfigError(f"Spark's JVM ended with code {process.returncode} at its start: its reason stands above")
        if time.monotonic() > deadline:
            process.kill()
            raise ConfigError(f"Spark's JVM did not start within {JVM_START_TIMEOUT_S} seconds")
        time.sleep(_POLL_S)
    content = answer.read_bytes()
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def _connect(process: subprocess.Popen[bytes], port: int, secret: str) -> JavaGateway:
    """PySpark connects to a JVM that is already there if these variables say so; they are for this one call."""
    from pyspark.java_gateway import launch_gateway

    os.environ.update(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret)
    try:
        gateway = launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    return gateway

"""The process that Python workers are forked from, and what its workers say when Spark's JVM hangs up on them."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import daemon
from pyspark.serializers import CPickleSerializer

from moldau.spark.data_source import MoldauDataSource
from moldau.spark.hang_ups import ignore_hang_ups

HANG_UPS = "moldau.spark.hang_ups"


def report(error: Exception, capsys: pytest.CaptureFixture[str]) -> str:
    """What PySpark's daemon prints of the error that ended a worker."""
    try:
        raise error
    except Exception:
        daemon.traceback.print_exc()
    return capsys.readouterr().err


@pytest.fixture
def _ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "traceback", daemon.traceback)  # as it was, when the test is over
    ignore_hang_ups()


@pytest.mark.usefixtures("_ignored")
@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, EOFError])
def test_a_worker_whose_jvm_hung_up_ends_without_a_word(
    error: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error("hung up"), capsys) == ""


@pytest.mark.usefixtures("_ignored")
def test_any_other_failure_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "OSError: no space left" in report(OSError("no space left"), capsys)


def test_the_daemon_is_also_found_where_spark_runs_it_as_a_script() -> None:
    code = (
        "import sys, types, pyspark.daemon\n"
        "sys.modules['__main__'].__spec__ = pyspark.daemon.__spec__\n"
        "del sys.modules['pyspark.daemon']\n"
        "import moldau.spark.data_source\n"
        "print(sys.modules['__main__'].traceback.__module__)\n"
    )
    assert run_python(code) == HANG_UPS


RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


def utf8(text: str) -> bytes:
    return with_length(text.encode())


def with_length(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


# What Spark says first: Python's version, the folder and number of its files, then the data source.
DATA_SOURCE = utf8(f"{sys.version_info.major}.{sys.version_info.minor}") + utf8("") + struct.pack("!i", 0)
DATA_SOURCE += with_length(CPickleSerializer().dumps(MoldauDataSource({})))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        pytest.param([RUNNER], DATA_SOURCE, id="plain session, hung up after the data source"),
        pytest.param([HANG_UPS, RUNNER], DATA_SOURCE, id="hung up after the data source"),
        pytest.param([HANG_UPS, RUNNER], b"", id="hung up at once"),
        pytest.param([HANG_UPS, RUNNER], None, id="listens no more"),
    ],
)
def test_a_stream_reader_whose_query_was_stopped_ends_without_a_word(
    module: list[str], said: bytes | None, tmp_path: Path
) -> None:
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as jvm:
        if said is not None:
            jvm.bind(address)
            jvm.listen()
            jvm.settimeout(60)
        with subprocess.Popen(
            [sys.executable, "-m", *module],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHON_WORKER_FACTORY_SOCK_PATH": address, "PYTHON_UNIX_DOMAIN_ENABLED": "true"},
        ) as reader:
            if said is not None:
                with jvm.accept()[0] as connection:
                    assert len(connection.recv(4)) == 4  # the reader's process id
                    connection.sendall(said)
            assert reader.communicate(timeout=60) == (b"", b"")


def test_what_else_ends_a_stream_reader_is_told() -> None:
    command = [sys.executable, "-m", HANG_UPS, "pyspark.no_such_module"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: No module named pyspark.no_such_module"


def test_what_workers_need_is_loaded_without_a_thread() -> None:
    """Python 3.12 warns of a fork in a process that has several, and their locks would stay locked in the fork."""
    code = "import psutil, moldau.spark.startup.daemon as d\nd.preload()\nprint(psutil.Process().num_threads())\n"
    assert run_python(code) == "1"


def run_python(code: str) -> str:
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as Spark and `fork_server` set them
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    return done.stdout.strip()

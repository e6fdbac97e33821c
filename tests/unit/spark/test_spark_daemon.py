"""The process that Python workers are forked from, and what its workers say when Spark's JVM hangs up on them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import daemon

from moldau.spark.hang_ups import ignore_hang_ups


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
@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_jvm_hung_up_ends_without_a_word(
    error: type[OSError], capsys: pytest.CaptureFixture[str]
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
        "import moldau.spark.source\n"
        "print(sys.modules['__main__'].traceback.__module__)\n"
    )
    assert run_python(code) == "moldau.spark.hang_ups"


def test_what_workers_need_is_loaded_without_a_thread() -> None:
    """Python 3.12 warns of a fork in a process that has several, and their locks would stay locked in the fork."""
    code = "import psutil\nfrom moldau.spark.daemon import preload\npreload()\nprint(psutil.Process().num_threads())\n"
    assert run_python(code) == "1"


def run_python(code: str) -> str:
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as Spark and `warm_python` set them
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    return done.stdout.strip()

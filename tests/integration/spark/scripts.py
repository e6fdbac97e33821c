"""Spark sessions in processes of their own: what a session's start, end and settings are tested with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

# A start takes seconds; a machine that is busy with other tests, more.
SCRIPT_TIMEOUT_S = 110


def start_script(code: str, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Runs this code in this folder; its environment says nothing of Java or Spark but what is given."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "JAVA", "PYTEST"))
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=kept | {"MOLDAU_CLASS_DATA": "use"} | environment,  # no archives made while tests run
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(code: str, folder: Path, *arguments: str, **environment: str) -> tuple[str, str]:
    """What it wrote to standard output and to standard error."""
    with start_script(code, folder, *arguments, **environment) as process:
        try:
            output, complaints = process.communicate(timeout=SCRIPT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, complaints
    return output, complaints


def wait_until(is_so: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

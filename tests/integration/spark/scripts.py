"""Spark sessions in processes of their own: what a session's start, end and settings are tested with."""

from __future__ import annotations

import os
import subprocess
import sys
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
        env=kept | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(code: str, folder: Path, *arguments: str, **environment: str) -> tuple[str, str]:
    """What it wrote to standard output and to standard error."""
    return output_of(start_script(code, folder, *arguments, **environment))


def output_of(script: subprocess.Popen[str], within_s: int = SCRIPT_TIMEOUT_S) -> tuple[str, str]:
    with script as process:
        try:
            output, complaints = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, complaints
    return output, complaints


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def next_line(process: subprocess.Popen[str]) -> str:
    """Of its standard output; where it ended instead, its complaints are the failure."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    return line.strip()

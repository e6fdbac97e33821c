"""`moldau pipeline run` as a process of its own, as a user starts it, and its end by kill -9."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from soak.broker_process import command

STOP_TIMEOUT_S = 60


def environment(folder: Path) -> dict[str, str]:
    """Without what a Spark session of this process may have set; the state of runs is in `folder/state`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "JAVA"))}
    return kept | {"MOLDAU_STATE_DIR": str(folder / "state")}


def start_run(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Started in this folder; what it prints is appended to `folder/run.log`."""
    with (folder / "run.log").open("ab") as output:
        return subprocess.Popen(
            [command("moldau"), "pipeline", "run", *arguments],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def said(folder: Path) -> str:
    """The end of what it has printed."""
    return (folder / "run.log").read_text(errors="replace")[-5000:]


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Until the end of the block; then it ends after its micro-batches, or is killed if that takes too long."""
    process = start_run(folder, *arguments)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_run(process)


def family(pid: int) -> list[psutil.Process]:
    """The command, Spark's JVM and all processes of Python."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def kill_run(process: subprocess.Popen[bytes], *, alone: bool = False) -> None:
    """kill -9 of all of it, as when the machine goes; or of the command alone, whose JVM has to notice and end."""
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = [] if alone else family(process.pid)[1:]
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()

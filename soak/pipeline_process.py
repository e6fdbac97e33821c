"""`moldau pipeline run` as a process of its own, as a user starts it, and its end by kill -9."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from soak.broker_process import command


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


def kill_run(process: subprocess.Popen[bytes], *, alone: bool = False) -> None:
    """kill -9 of all of it, as when the machine goes; or of the command alone, whose JVM has to notice and end."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = [] if alone else psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in family:
        with suppress(psutil.NoSuchProcess):
            child.kill()

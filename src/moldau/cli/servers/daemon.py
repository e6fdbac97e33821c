"""`-daemon`: a server in the background, with its log in a file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from moldau.errors import ConfigError

READY_TIMEOUT_S = 60.0
_POLL_S = 0.05


def log_path(name: str) -> Path:
    """`$LOG_DIR/<name>.log`, as Kafka's scripts have it; in ./logs where that is not set."""
    return Path(os.environ.get("LOG_DIR") or "logs").absolute() / f"{name}.log"


def start_in_background(argv: Sequence[str], *, name: str, is_ready: Callable[[int], bool], stop: str) -> int:
    """Starts `moldau <argv>` in a session of its own; returns an exit code when it is ready, or has failed."""
    path = log_path(name)
    with _open_log(path) as output:
        begin = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "moldau", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not is_ready(process.pid):
        if process.poll() is not None:
            said = path.read_bytes()[begin:].decode(errors="replace").strip().splitlines()
            print(said[-1] if said else f"moldau: {name} exited immediately", file=sys.stderr)
            print(f"moldau: {name} did not start; its log is {path}", file=sys.stderr)
            return process.returncode or 1
        if time.monotonic() > deadline_s:
            print(f"{name} is still starting (process {process.pid}); its log is {path}")
            return 0
        time.sleep(_POLL_S)
    print(f"{name} runs in the background (process {process.pid}); its log is {path}; stop it with {stop}")
    return 0


def _open_log(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise ConfigError(
            f"cannot write the log {path}: {error.strerror} ({error.filename}); set LOG_DIR to another directory"
        ) from None

"""A process that all Python processes of a local session are forked from.

Spark starts a Python process for each step of a query that involves Python (find the data sources, ask for the
columns, plan, read, write, commit). Each imports PySpark, Arrow and this package: most of a second each, one after the
other, before the first row. The fork server imports them once, while the JVM starts. `PYSPARK_PYTHON` names a small
script, which runs `fork_client` instead of Python: the client hands Spark's pipes to the server, and a fork of the
server becomes the daemon, or the reader of a stream, that Spark asked for.

The server ends with the process that started it, which holds the other end of its standard input.
"""

from __future__ import annotations

import gc
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from moldau.spark.hang_ups import run_module
from moldau.spark.startup import fork_client
from moldau.spark.startup.daemon import preload
from moldau.spark.startup.end_signals import shield_process

# Requests of one query's start; each is accepted within milliseconds.
_BACKLOG = 64
# An environment larger than that could not have been passed to a process.
_REQUEST_BYTES_MAX = 16 * 1024 * 1024


class ForkServer(NamedTuple):
    script: str  # what is to be PYSPARK_PYTHON
    process: subprocess.Popen[bytes]  # ends when its standard input is closed


def start_fork_server(folder: Path) -> ForkServer:
    """The script and the socket are in this folder, which must be closed to other users."""
    address = folder / "socket"
    script = folder / "python"
    client = shlex.join([sys.executable, "-I", "-S", str(fork_client.__file__), sys.executable, str(address)])
    script.write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    # A library that starts threads when it is imported would lose them in a fork.
    environment = {"PYTHONHASHSEED": "0", **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "moldau.spark.startup.fork_server", str(address)],
        stdin=subprocess.PIPE,
        env=environment,
        process_group=0,
    )
    return ForkServer(str(script), process)


def serve(address: str) -> None:
    shield_process(forks_too=True)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except FileNotFoundError:
            return  # the process that started this one has ended and deleted the folder
        listener.listen(_BACKLOG)
        preload()
        gc.freeze()  # a collection in a fork would touch all objects, and so copy the memory that forks share
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become_program(connection)
            connection.close()


def _become_program(connection: socket.socket) -> None:
    """In the fork: do what `python -m pyspark.daemon <worker module>` does, or `python -m <module>`."""
    _, pipes, _, _ = socket.recv_fds(connection, 1, 3)
    program, folder, *variables = _read_all(connection).split(b"\0")
    for descriptor, pipe in enumerate(pipes):
        os.dup2(pipe, descriptor)
        os.close(pipe)
    os.chdir(folder)
    os.environb.clear()
    os.environb.update(dict(variable.split(b"=", 1) for variable in variables))
    for place, entry in enumerate(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), start=1):
        if entry not in sys.path:
            sys.path.insert(place, entry)
    module, *sys.argv[1:] = os.fsdecode(program).split(" ")
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr] # as PYTHONUNBUFFERED does
    connection.sendall(os.getpid().to_bytes(fork_client.PID_BYTES, "big"))
    # The client waits for the daemon's end, not for that of its workers.
    os.register_at_fork(after_in_child=connection.close)
    try:
        if module in fork_client.DAEMONS:
            from pyspark.daemon import manager

            manager()
        else:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            shield_process()
            os._exit(run_module(module))
    finally:
        os._exit(1)  # the stack above belongs to the server, not to the fork


def _read_all(connection: socket.socket) -> bytes:
    parts = bytearray()
    while part := connection.recv(65536):
        parts += part
        if len(parts) > _REQUEST_BYTES_MAX:
            raise ValueError("a request that is too long")
    return bytes(parts)


if __name__ == "__main__":
    serve(sys.argv[1])

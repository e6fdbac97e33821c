"""What Spark runs as its Python in a local session: it asks the fork server for a process (`fork_server`).

    fork_client.py <python> <socket> -m pyspark.daemon <worker module>
    fork_client.py <python> <socket> -m pyspark.sql.streaming.python_streaming_source_runner

The fork gets Spark's pipes, environment and working directory. This process stays, because Spark watches it: it passes
on the signal to terminate and ends when the fork ends. For a command line that does not run a module of PySpark or a
daemon, or if the server does not answer, it executes the real Python. Spark runs this script several times before
the first result, so it imports only what Python has built in.
"""

import os
import signal
import socket
import sys

DAEMONS = ("pyspark.daemon", "moldau.spark.startup.daemon")
PID_BYTES = 8


def main(python: str, address: str, *arguments: str) -> None:
    if arguments[:1] == ("-m",) and (arguments[1] in DAEMONS or arguments[1].startswith("pyspark.")):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
            _follow(connection, arguments[1:])
            return
        except OSError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            connection.close()
    if arguments[:1] == ("-m",) and arguments[1] not in DAEMONS and arguments[1].startswith("pyspark."):
        arguments = ("-m", "moldau.spark.hang_ups", *arguments[1:])
        # Out of the zip file Python would compile every module of PySpark again; the installed package is the same.
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in path if not entry.endswith("/pyspark.zip"))
    os.execv(python, [python, *arguments])


def _follow(connection: socket.socket, program: tuple[str, ...]) -> None:
    # A signal that arrives before the fork's pid is known has to wait, or it would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    variables = [name + b"=" + value for name, value in os.environb.items()]
    socket.send_fds(connection, [b"\0"], [0, 1, 2])
    connection.sendall(b"\0".join([os.fsencode(" ".join(program)), os.fsencode(os.getcwd()), *variables]))
    connection.shutdown(socket.SHUT_WR)
    pid = int.from_bytes(connection.recv(PID_BYTES), "big")
    if not pid:
        raise OSError("no process was forked")
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.close(0)
    os.close(1)
    connection.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What a local session's Spark runs as its Python: asks for a fork of a warm process (see `warm_python`).

    warm_client.py <python> <socket> -m pyspark.daemon <worker module>

Spark's pipes, environment and folder go to the process that was forked; this one stays, for Spark watches it, passes
on the signal to end, and ends with the other. Any other command line, or a socket where nobody answers: the real Python
takes its place; modules of PySpark's are run by `hang_ups` then. Only what Python has built in is imported, for this is
run several times before the first result.
"""

import os
import signal
import socket
import sys

_DAEMONS = ("pyspark.daemon", "moldau.spark.startup.daemon")
PID_BYTES = 8


def main(python: str, address: str, *arguments: str) -> None:
    if len(arguments) == 3 and arguments[0] == "-m" and arguments[1] in _DAEMONS:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
            _follow(connection, arguments[2])
            return
        except OSError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            connection.close()
    elif arguments[:1] == ("-m",) and arguments[1].startswith("pyspark."):
        arguments = ("-m", "moldau.spark.hang_ups", *arguments[1:])
    os.execv(python, [python, *arguments])


def _follow(connection: socket.socket, worker_module: str) -> None:
    # A signal that comes before the process is known waits: the process would never hear of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    variables = [name + b"=" + value for name, value in os.environb.items()]
    socket.send_fds(connection, [b"\0"], [0, 1, 2])
    connection.sendall(b"\0".join([os.fsencode(worker_module), os.fsencode(os.getcwd()), *variables]))
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

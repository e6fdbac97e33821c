"""What Spark runs as its Python in a local session: it asks the fork server for a process (`fork_server`).

    fork_client.py <python> <socket> -m pyspark.daemon <worker module>
    fork_client.py <python> <socket> -m pyspark.sql.streaming.python_streaming_source_runner

The fork gets Spark's pipes, environment and working directory. This process stays, because Spark watches it: it ends
when the fork ends, and kills a fork whose standard input Spark closes, except for daemons, which then end by
themselves. Spark also sends the signal to terminate, as others do that do not mean this process (`end_signals`): it
is ignored. For a command line that does not run a module of PySpark or a daemon, or if the server does not answer, it
executes the real Python. Spark runs this script several times before the first result, so it imports only what Python
has built in.
"""

import os
import select
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
            connection.close()
    if arguments[:1] == ("-m",) and arguments[1] not in DAEMONS and arguments[1].startswith("pyspark."):
        arguments = ("-m", "moldau.spark.hang_ups", *arguments[1:])
        # Out of the zip file Python would compile every module of PySpark again; the installed package is the same.
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in path if not entry.endswith("/pyspark.zip"))
    os.execv(python, [python, *arguments])


def _follow(connection: socket.socket, program: tuple[str, ...]) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    variables = [name + b"=" + value for name, value in os.environb.items()]
    socket.send_fds(connection, [b"\0"], [0, 1, 2])
    connection.sendall(b"\0".join([os.fsencode(" ".join(program)), os.fsencode(os.getcwd()), *variables]))
    connection.shutdown(socket.SHUT_WR)
    pid = int.from_bytes(connection.recv(PID_BYTES), "big")
    if not pid:
        raise OSError("no process was forked")
    os.close(1)
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    if program[0] not in DAEMONS:
        poller.register(0, 0)  # told when it is closed; what there is to read is the fork's
    if all(descriptor == 0 for descriptor, _ in poller.poll()):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`moldau start --brokers 3`: one process per broker, started again when it dies, all stopped with this one.

The first Ctrl-C or SIGTERM stops the brokers in order, the second one kills them. A broker that is stopped by itself
(`moldau stop --node-id 2`) stays stopped until `moldau start --node-id 2`, which leaves a file in the cluster's folder
for the supervisor to find. Should the supervisor be killed, its brokers notice and stop.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from moldau.cli.servers import running
from moldau.errors import ConfigError, MoldauError
from moldau.local_cluster import (
    BROKERS_MAX,
    HOST,
    BrokerProcess,
    Restarter,
    check_shared,
    shared_properties,
    stop_brokers,
    wait_until_ready,
)
from moldau.version import __version__

logger = logging.getLogger(__name__)

DATA_DIR = Path("moldau-cluster")
_TICK_S = 0.1
_START_TIMEOUT_S = 60.0


class _Stopped(BaseException):
    """Somebody wants the cluster to stop; not an Exception, so that nothing on the way takes it for a failure."""


def supervise(count: int, port: int, data_dir: Path | None, given: Mapping[str, str], options: Sequence[str]) -> int:
    """`given` are server properties for all brokers, `options` go to each `moldau start`. Returns the exit code."""
    folder = (data_dir or DATA_DIR).absolute()
    lock = _lock(folder)
    brokers = _brokers(count, port, folder, given, options)
    for broker in brokers:
        _request_path(folder, broker.node_id).unlink(missing_ok=True)  # of an earlier run
    _stop_on_signals(brokers)
    facts = {
        "node.id": None,
        "listeners": [f"PLAINTEXT://{broker.address}" for broker in brokers],
        "log.dirs": [str(folder)],
        "brokers": count,
    }
    try:
        with running.registered(facts):
            try:
                _run(brokers, folder)
            finally:
                logger.info("stopping")
                stop_brokers(brokers)
                logger.info("stopped")
    except _Stopped:
        return 0
    except MoldauError as error:
        print(f"moldau: {error}", file=sys.stderr)
        return 1
    finally:
        lock.close()
    return 0


def _lock(folder: Path) -> IO[bytes]:
    """Two clusters that start on one folder at once would each get some of its brokers' directories."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "cluster.lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"{folder} is in use by a cluster that is already running{_where(folder)}: stop it with `moldau stop`, "
            "or start another one with --data-dir and --port"
        ) from None
    return file


def _where(folder: Path) -> str:
    with suppress(OSError):
        for facts in running.find_running():
            if facts["log.dirs"] == [str(folder)]:
                return " on " + ", ".join(listener.partition("://")[2] for listener in facts["listeners"])
    return ""


def _brokers(
    count: int, port: int, folder: Path, given: Mapping[str, str], options: Sequence[str]
) -> list[BrokerProcess]:
    if not 1 <= count <= BROKERS_MAX:
        raise ConfigError(f"--brokers {count}: expected 1 to {BROKERS_MAX}")
    if not 1 <= port <= 65_536 - count:
        raise ConfigError(f"--port {port}: expected 1 to {65_536 - count}")
    if (folder / "meta.properties").exists():
        raise ConfigError(f"{folder} contains the data of a single broker: choose another directory with --data-dir")
    check_shared(given)
    shared = shared_properties(count, folder, given)
    brokers = [BrokerProcess(number + 1, port + number, folder, shared, options=options) for number in range(count)]
    metrics = [int(broker.properties.get("moldau.metrics.port", 0)) for broker in brokers]
    ports = [broker.port for broker in brokers] + [number for number in metrics if number > 0]
    if len(set(ports)) < len(ports):
        raise ConfigError(
            f"moldau.metrics.port={metrics[0]}: the brokers use ports {port} to {port + count - 1}, and their "
            "metrics as many ports from this one; choose ports that do not overlap"
        )
    for number in ports:
        _check_free(number)
    return brokers


def _check_free(port: int) -> None:
    """Before anything is started: a cluster that already runs there would answer in the place of this one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {HOST}:{port} ({error.strerror}); is another broker running there? Choose other "
                "ports with --port"
            ) from error


def _run(brokers: Sequence[BrokerProcess], folder: Path) -> None:
    for broker in brokers:
        broker.start()
    wait_until_ready(brokers, math.inf)  # after a crash they may have much to check, and say how far they are
    bootstrap = ",".join(broker.address for broker in brokers)
    logger.info(
        "Moldau %s is ready", __version__, extra={"bootstrap": bootstrap, "brokers": len(brokers), "data": folder}
    )
    restarter = Restarter(brokers, logger.warning)
    while any(broker.is_wanted for broker in brokers):
        _start_requested(brokers, folder)
        restarter.tick(time.monotonic())
        time.sleep(_TICK_S)


def _start_requested(brokers: Sequence[BrokerProcess], folder: Path) -> None:
    for broker in brokers:
        request = _request_path(folder, broker.node_id)
        if request.exists():
            request.unlink()
            if not broker.is_alive:
                logger.info("restarting broker %d", broker.node_id)
                broker.start()


def _request_path(folder: Path, node_id: int) -> Path:
    return folder / f"broker-{node_id}.start"


def start_again(node_id: int, data_dir: Path | None) -> int:
    """`moldau start --node-id 2`: asks the running supervisor for a broker that was stopped. Returns the exit code."""
    facts = _running_cluster(data_dir)
    if not 1 <= node_id <= facts["brokers"]:
        raise ConfigError(f"--node-id {node_id}: the ids of this cluster are 1 to {facts['brokers']}")
    if _is_running(node_id, facts):
        raise MoldauError(f"broker {node_id} is already running")
    print(f"starting broker {node_id}", flush=True)
    _request_path(Path(facts["log.dirs"][0]), node_id).touch()
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not _is_running(node_id, facts):
        if not running.is_running(facts["pid"]):
            raise MoldauError("the cluster was stopped in the meantime")
        if time.monotonic() > deadline:
            raise MoldauError(f"broker {node_id} is not ready after {_START_TIMEOUT_S:.0f} s: see its log")
        time.sleep(_TICK_S)
    print(f"broker {node_id} is ready on {facts['listeners'][node_id - 1].partition('://')[2]}")
    return 0


def _running_cluster(data_dir: Path | None) -> dict[str, Any]:
    found = [facts for facts in running.find_running() if facts["node.id"] is None]
    if data_dir is not None:
        found = [facts for facts in found if facts["log.dirs"] == [str(data_dir.absolute())]]
    if not found:
        raise ConfigError("--node-id: no cluster is running; start one with moldau start --brokers 3")
    if len(found) > 1:
        folders = ", ".join(facts["log.dirs"][0] for facts in found)
        raise ConfigError(f"--node-id: several clusters are running; choose one with --data-dir: {folders}")
    return found[0]


def _is_running(node_id: int, cluster: Mapping[str, Any]) -> bool:
    return any(
        facts["node.id"] == node_id and facts.get("parent") == cluster["pid"] for facts in running.find_running()
    )


def _stop_on_signals(brokers: Sequence[BrokerProcess]) -> None:
    def kill(number: int, frame: FrameType | None) -> None:
        for broker in brokers:
            if broker.is_alive:
                os.kill(broker.pid, signal.SIGKILL)

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, kill)
        raise _Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)

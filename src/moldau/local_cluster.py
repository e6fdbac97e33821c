"""Several brokers on one machine, each a process of its own: `with Cluster(3) as cluster: …`.

A `BrokerProcess` is one broker: its properties file, its port, its data and its log stay over kills and restarts.
A `Cluster` is N of them that share their metadata through a directory or ZooKeeper; a `Restarter` restarts those that
died. `moldau start --brokers 3` uses the same parts.

No process outlives the one that started it: each reads from a pipe that is never written to, and stops at its end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from moldau.client.cluster import ClusterClient, Metadata
from moldau.client.config import ClientConfig
from moldau.config.broker import BrokerConfig
from moldau.config.properties import as_property, format_properties
from moldau.errors import ConfigError, KafkaError, MoldauError
from moldau.startable import Startable

HOST = "127.0.0.1"
BROKERS_MAX = 100  # a slip of the finger must not start ten thousand processes
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02
_LAST_LINES = 20
# Below the range from which outgoing connections get theirs: a client that retries while a broker is down could
# otherwise be given the very port, or connect to itself.
_PORTS = range(10_000, 30_000)
_BACKOFF_S = 0.2
_BACKOFF_MAX_S = 10.0
_OWN = frozenset({"node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir"})

T = TypeVar("T")


def check_shared(given: Mapping[str, str]) -> None:
    """Raise ConfigError for keys that cannot have the same value on all brokers."""
    own = given.keys() & _OWN
    if own:
        raise ConfigError(f"{', '.join(sorted(own))}: cannot be set: the cluster chooses a value for each broker")


def shared_properties(count: int, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """What all brokers of a cluster have in common: every topic replicated, acks=all answered by more than one of
    three, and one place for the metadata; `given` wins."""
    factor, min_isr = str(min(3, count)), "2" if count >= 3 else "1"
    metadata = {} if "zookeeper.connect" in given else {"moldau.metadata.dir": str(folder / "metadata")}
    return {
        **metadata,
        "moldau.cluster.brokers": str(count),
        "default.replication.factor": factor,
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": min_isr,
        **given,
    }


class BrokerProcess:
    """One broker. `kill` sends SIGKILL, `stop` SIGTERM; `start` starts it again with the same port and data."""

    def __init__(
        self,
        node_id: int,
        port: int,
        folder: Path,
        properties: Mapping[str, str],
        *,
        options: Sequence[str] = (),
        log_path: Path | None = None,
    ) -> None:
        """Without `log_path` the broker logs to this process's standard error."""
        self.node_id = node_id
        self.port = port
        self.data_dir = folder / f"broker-{node_id}"
        self.log_path = log_path
        self.is_paused = False
        self.is_wanted = False  # started, and not stopped since: it has to be alive
        # Of its own; what a test changes here holds from the next start on.
        self.properties = {
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            "log.dirs": str(self.data_dir),
            **properties,
        }
        metrics_port = properties.get("moldau.metrics.port", "")
        if metrics_port.isdigit() and int(metrics_port):  # one after the other, as the listeners'
            self.properties["moldau.metrics.port"] = str(int(metrics_port) + node_id - 1)
        self.command: Sequence[str] = (sys.executable, "-m", "moldau")
        self._properties_path = folder / f"broker-{node_id}.properties"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()  # by a keeper, while a test does it too

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "alive" if self.is_alive else "down"
        return f"<broker {self.node_id} at {self.address}, {state}>"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise MoldauError(f"broker {self.node_id} has not been started")
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negated signal number if a signal killed it."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start without waiting; see `Cluster.wait_until_ready`."""
        with self._starting, contextlib.ExitStack() as opened:
            if self.is_alive:
                raise MoldauError(f"broker {self.node_id} is already running")
            self._properties_path.parent.mkdir(parents=True, exist_ok=True)
            self._properties_path.write_text(format_properties(self.properties))
            self._close()
            output = None if self.log_path is None else opened.enter_context(self.log_path.open("ab"))
            self._process = subprocess.Popen(
                [*self.command, "start", str(self._properties_path), "--child", *self._options],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the parent, which stops the brokers in order
            )
            self.is_wanted = True
            self.is_paused = False

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop cleanly: hand over leaderships and flush logs. A second call does nothing."""
        self.is_wanted = False
        if not self.is_alive:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(MoldauError):  # it may have ended already
            self.resume()
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise MoldauError(f"broker {self.node_id} did not stop within {timeout_s:.0f} s and was killed") from None
        finally:
            self._close()

    def kill(self) -> None:
        """Send SIGKILL, like a crash, and wait for the process to end."""
        if self.is_alive:
            assert self._process is not None
            self._signal(signal.SIGKILL)
            self._process.wait()
        self.is_paused = False
        self._close()

    def pause(self) -> None:
        """Send SIGSTOP: the process hangs but keeps its connections. Returns when it has stopped."""
        self._signal(signal.SIGSTOP)
        self.is_paused = True
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def last_lines(self) -> str:
        """The last lines of its log, for error messages."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_LAST_LINES:])

    def exit_error(self) -> MoldauError:
        """The error for a broker that should be running and is not."""
        code = self.exit_code
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exited with code {code}"
        )
        said = self.last_lines()
        return MoldauError(
            f"broker {self.node_id} {how}" + (f"; last lines of {self.log_path}:\n{said}" if said else "")
        )

    def _signal(self, number: signal.Signals) -> None:
        if not self.is_alive:
            raise MoldauError(f"broker {self.node_id} is not running")
        os.kill(self.pid, number)

    def _close(self) -> None:
        """This end of the pipe of a process that has ended."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


class Restarter:
    """Restarts brokers that died: after 0.2 s, then after twice the delay each time, up to 10 s.

    A broker that exited with code 0 was stopped on purpose (`moldau stop --node-id 2`) and is not restarted.
    """

    def __init__(self, brokers: Sequence[BrokerProcess], say: Callable[[str], None]) -> None:
        self._brokers = brokers
        self._say = say
        self._backoff_s: dict[int, float] = {}
        self._due: dict[int, float] = {}
        self._started: dict[int, float] = {}

    def tick(self, now: float) -> None:
        for broker in self._brokers:
            due = self._due.get(broker.node_id)
            if due is not None and (now >= due or not broker.is_wanted):
                del self._due[broker.node_id]
                if broker.is_wanted and not broker.is_alive:
                    with contextlib.suppress(MoldauError, OSError):  # somebody was quicker, or it has to be tried again
                        broker.start()
                    self._started[broker.node_id] = now
            elif due is None and broker.is_wanted and not broker.is_alive:
                self._ended(broker, now)

    def _ended(self, broker: BrokerProcess, now: float) -> None:
        if broker.exit_code == 0:
            broker.is_wanted = False
            self._say(f"broker {broker.node_id} was stopped and is not restarted")
            return
        lasted_s = now - self._started.get(broker.node_id, 0.0)
        again_s = self._backoff_s.get(broker.node_id, _BACKOFF_S) if lasted_s < _BACKOFF_MAX_S else _BACKOFF_S
        self._backoff_s[broker.node_id] = min(2 * again_s, _BACKOFF_MAX_S)
        self._due[broker.node_id] = now + again_s
        self._say(f"{str(broker.exit_error()).splitlines()[0]}; restarting it in {again_s:.1f} s")


class Cluster(Startable):
    """`count` brokers with node ids from 1, on free ports of 127.0.0.1.

    `config` takes Kafka's server properties for all of them. `zookeeper` is the address of an ensemble for their
    metadata, which is otherwise stored in `data_dir`. Without `data_dir` a temporary directory is used and removed at
    the end. The brokers log to `broker-1.log` … in it. With `restart`, brokers that die are restarted.
    """

    def __init__(
        self,
        count: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        data_dir: str | Path | None = None,
        zookeeper: str | None = None,
        restart: bool = False,
    ) -> None:
        if not 1 <= count <= BROKERS_MAX:
            raise ValueError(f"count: expected 1 to {BROKERS_MAX} brokers, got {count}")
        given = {str(key): as_property(value) for key, value in (config or {}).items()}
        check_shared(given)
        # A warning in the log of a test goes unseen: a misspelt key has to be an error.
        BrokerConfig.from_properties(given, strict=True)
        if zookeeper is not None:
            given["zookeeper.connect"] = zookeeper
        self._temporary = None if data_dir else tempfile.TemporaryDirectory(prefix="moldau-cluster-")
        self.data_dir = Path(data_dir or self._temporary.name).absolute()  # type: ignore[union-attr]
        self._ports = _reserve_ports(count)
        shared = shared_properties(count, self.data_dir, given)
        self.brokers = [
            BrokerProcess(node_id, port, self.data_dir, shared, log_path=self.data_dir / f"broker-{node_id}.log")
            for node_id, port in enumerate((each.getsockname()[1] for each in self._ports), start=1)
        ]
        self._restart = restart
        self._over = threading.Event()
        self._restarter: threading.Thread | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,…` of all brokers, running or not: clients find one that responds."""
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, node_id: int) -> BrokerProcess:
        if not 1 <= node_id <= len(self.brokers):
            raise MoldauError(f"there is no broker {node_id}: the ids are 1 to {len(self.brokers)}")
        return self.brokers[node_id - 1]

    def start(self) -> Self:
        """Return when all brokers have joined the cluster."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if sys.platform != "linux":  # elsewhere a port that is bound cannot be bound again
            self._release_ports()
        try:
            for broker in self.brokers:
                broker.start()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        if self._restart:
            self._over.clear()
            self._restarter = threading.Thread(target=self._restart_brokers, name="moldau-restarter", daemon=True)
            self._restarter.start()
        return self

    def stop(self) -> None:
        """Stop the brokers cleanly, or kill them if the data is temporary."""
        self._over.set()
        if self._restarter is not None:
            self._restarter.join()
            self._restarter = None
        if self._temporary is None:
            stop_brokers(self.brokers)
        for broker in self.brokers:
            broker.is_wanted = False
            broker.kill()
        self._release_ports()
        if self._temporary is not None:
            self._temporary.cleanup()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until all started brokers know of each other."""
        wait_until_ready([broker for broker in self.brokers if broker.is_wanted], timeout_s)

    def leader_of(self, topic: str, partition: int = 0, timeout_s: float = READY_TIMEOUT_S) -> BrokerProcess:
        """The running broker that leads a partition; waits for an election if there is none."""

        def leader(metadata: Metadata) -> int | None:
            found = metadata.topics[topic].partitions
            return next((each.leader for each in found if each.partition == partition), None)

        return self._running(lambda client: leader(client.metadata([topic])), timeout_s, f"leads {topic}-{partition}")

    def controller(self, timeout_s: float = READY_TIMEOUT_S) -> BrokerProcess:
        """The running broker that is the controller; waits for an election if there is none."""
        return self._running(lambda client: client.metadata(()).controller_id, timeout_s, "is the controller")

    def _running(self, ask: Callable[[ClusterClient], int | None], timeout_s: float, what: str) -> BrokerProcess:
        """The running broker whose id `ask` returns."""
        deadline = time.monotonic() + timeout_s
        while True:
            node_id = _first_answer(self.brokers, ask)
            if node_id is not None and 1 <= node_id <= len(self.brokers):
                broker = self.broker(node_id)
                if broker.is_alive and not broker.is_paused:
                    return broker
            if time.monotonic() > deadline:
                raise MoldauError(f"no running broker {what} after {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _release_ports(self) -> None:
        for reserved in self._ports:
            reserved.close()

    def _restart_brokers(self) -> None:
        restarter = Restarter(self.brokers, lambda _: None)
        while not self._over.wait(_POLL_S):
            restarter.tick(time.monotonic())


def wait_until_ready(brokers: Sequence[BrokerProcess], timeout_s: float = READY_TIMEOUT_S) -> None:
    """Wait until each of these brokers reports all of them as registered and not fenced."""
    deadline = time.monotonic() + timeout_s
    wanted = {broker.node_id for broker in brokers}
    waiting = list(brokers)
    while waiting:
        for broker in brokers:
            if not broker.is_alive:
                raise broker.exit_error()
        waiting = [
            each for each in waiting if not wanted <= (_first_answer([each], lambda c: set(c.brokers())) or set())
        ]
        if waiting and time.monotonic() > deadline:
            late = ", ".join(str(broker.node_id) for broker in waiting)
            raise MoldauError(f"broker {late} not ready after {timeout_s:.0f} s:\n{waiting[0].last_lines()}")
        if waiting:
            time.sleep(_POLL_S)


def stop_brokers(brokers: Iterable[BrokerProcess]) -> None:
    """Stop one after the other, so that each can hand over its leaderships; the controller does that, and is last."""
    alive = [broker for broker in brokers if broker.is_alive]
    controller_id = _first_answer(alive, lambda client: client.metadata(()).controller_id)
    for broker in sorted(alive, key=lambda broker: broker.node_id == controller_id):
        with contextlib.suppress(MoldauError):  # it was killed then
            broker.stop()


def _first_answer(brokers: Iterable[BrokerProcess], ask: Callable[[ClusterClient], T]) -> T | None:
    """The first response of a running broker; None if there is none yet."""
    for broker in brokers:
        if broker.is_alive and not broker.is_paused:
            config = ClientConfig(((HOST, broker.port),), request_timeout_ms=2_000, api_timeout_ms=2_000)
            with contextlib.suppress(KafkaError, KeyError), ClusterClient(config) as client:
                return ask(client)
    return None


def _reserve_ports(count: int) -> list[socket.socket]:
    """Free ports, held as long as the cluster lasts: bound, so that no other process gets them, and not listening,
    so that a broker can bind them too, and connections to a dead broker are refused immediately."""
    choose = random.SystemRandom()
    held: list[socket.socket] = []
    while len(held) < count:
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((HOST, choose.choice(_PORTS)))
        except OSError:
            reserved.close()
        else:
            held.append(reserved)
    return held

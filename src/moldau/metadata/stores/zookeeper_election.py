"""The election through ZooKeeper, with Kafka's own nodes.

    /controller          ephemeral: the controller; removed with its session
    /controller_epoch    the number of the newest epoch; its version is the fence
    /brokers/ids/<id>    ephemeral: a broker that is alive, for tools that look there

To begin an epoch is one transaction: `/controller` is created and `/controller_epoch` set, if nobody else has set it
since. Every write of a controller checks that version, so whatever becomes of sessions and watches, a controller that
was replaced can write nothing. That allows `take_over`: to replace a controller whose session has not ended yet.

A controller that loses its connection continues if it finds its session again in time. After that, this broker cannot
know who the controller is: it counts as replaced, and begins a new epoch once it is connected again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Sequence

from moldau.errors import FencedControllerError, StorageError
from moldau.log_limits import LogLimit
from moldau.metadata.stores.store import Candidate, ControllerTerm, Endpoint, OnChange
from moldau.metadata.stores.zookeeper_client import (
    Check,
    ConnectionLossError,
    Create,
    Delete,
    Node,
    Operation,
    RefusedError,
    SetData,
    ZooKeeperClient,
)

logger = logging.getLogger(__name__)

CONTROLLER = "/controller"
EPOCH = "/controller_epoch"
BROKERS = "/brokers/ids"

# Watches report changes. This is for what no watch reports: a connection lost for too long, an error that is over.
_RECHECK_S = 1.0
# A shorter loss of the connection is not logged: a client moves from one server of the ensemble to another.
_SHORT_DISCONNECT_S = 2.0
_DISCONNECTED = "away"


class ZooKeeperElection:
    def __init__(self, client: ZooKeeperClient, session_timeout_s: float, wake: threading.Event) -> None:
        self._client = client
        self._session_timeout_s = session_timeout_s
        self._wake = wake
        self._candidate = Candidate(-1, "", 0)
        self._on_change: OnChange = lambda _: None
        self._is_candidate = False
        self._fence: tuple[int, int] | None = None
        self._reported: ControllerTerm | None = None
        self._abandoned_epoch = self._taken_over_epoch = -1
        self._last_contact_s = 0.0  # when ZooKeeper is last known to have heard of this session
        self._announcement: tuple[str, bytes] | None = None
        self._announced_session = 0
        self._closing = False
        self._log_limit = LogLimit(clock=time.monotonic)
        self._watcher = threading.Thread(target=self._run, name="moldau-election", daemon=True)

    def open(self) -> None:
        self._client.make_path(BROKERS)
        if self._client.get(EPOCH) is None:
            with contextlib.suppress(RefusedError):  # another broker was first
                self._client.commit([Create(EPOCH, b"0")])

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        self._candidate = candidate
        self._on_change = on_change
        self._is_candidate = True
        self._last_contact_s = time.monotonic()
        node = self._client.get(CONTROLLER)
        term = _parse_controller(node) if node is not None else None
        self._reported = term if term is not None and not self._is_lost(term) else None
        on_change(self._reported)
        self._wake.set()
        self._watcher.start()

    def announce(self, node_id: int, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        self._announcement = (f"{BROKERS}/{node_id}", _broker_json(endpoints, rack))
        self._announced_session = 0
        self._wake.set()

    def fence(self, epoch: int) -> Check:
        """What every write of the controller of `epoch` has to begin with."""
        fence = self._fence
        if fence is None or fence[0] != epoch:
            raise FencedControllerError(f"controller epoch {epoch} is fenced by a newer controller")
        return Check(EPOCH, fence[1])

    def abandon(self, epoch: int) -> None:
        """The result of the last write of `epoch` is not known: a new epoch has to begin with what is there."""
        self._abandoned_epoch = max(self._abandoned_epoch, epoch)
        self._wake.set()

    def take_over(self, epoch: int) -> None:
        self._taken_over_epoch = epoch
        self._wake.set()

    def resign(self) -> None:
        self._is_candidate = False
        fence, self._fence = self._fence, None
        if fence is not None:
            self.abandon(fence[0])
            try:
                self._withdraw(fence[0])
            except (ConnectionLossError, RefusedError) as error:
                logger.info("cannot resign as controller yet, will retry", extra={"why": str(error)})
        self._wake.set()

    def campaign_again(self) -> None:
        self._is_candidate = True
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._client.close()  # ends whatever the watcher waits for
        self._wake.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_RECHECK_S)
            self._wake.clear()
            if self._closing:
                return
            try:
                self._check_controller()
            except ConnectionLossError:
                self._on_disconnected()
            except RefusedError:
                self._wake.set()  # another broker was first
            except Exception as error:  # without this thread the broker would never learn of another controller
                if self._log_limit.allows(str(error)):
                    logger.error("cannot take part in the controller election, will retry", extra={"why": str(error)})
                self._follow(None)

    def _check_controller(self) -> None:
        if not self._client.is_connected:
            self._on_disconnected()
            return
        asked_s = time.monotonic()
        self._publish()
        node = self._client.get(CONTROLLER, on_change=self._changed)
        self._last_contact_s = asked_s
        if self._log_limit.reset(_DISCONNECTED):
            logger.info("ZooKeeper responds again", extra={"zookeeper": self._client.address})
        if node is None:
            self._follow(None)
            if self._is_candidate:
                self._begin_epoch(None)
            return
        term = _parse_controller(node)
        is_ours = node.owner == self._client.session_id
        if is_ours and self._is_candidate and term.epoch > self._abandoned_epoch:
            self._lead(term)
        elif self._is_candidate and (is_ours or self._is_lost(term)):
            self._follow(None)
            self._begin_epoch(term)
        elif is_ours:
            self._follow(None)
            self._withdraw(term.epoch)
        else:
            self._follow(term)

    def _is_lost(self, term: ControllerTerm) -> bool:
        # At this address, in another session: an earlier process of this broker.
        return term.epoch == self._taken_over_epoch or term[1:] == self._candidate

    def _begin_epoch(self, predecessor: ControllerTerm | None) -> None:
        epoch, version = self._newest_epoch()
        if predecessor is not None and predecessor.epoch != epoch:
            self._wake.set()  # it has a successor by now
            return
        term = ControllerTerm(epoch + 1, *self._candidate)
        operations: list[Operation] = [SetData(EPOCH, b"%d" % term.epoch, version)]
        if predecessor is not None:
            operations.append(Delete(CONTROLLER))
        operations.append(Create(CONTROLLER, _controller_json(term), is_ephemeral=True))
        self._client.commit(operations)
        self._wake.set()

    def _withdraw(self, epoch: int) -> None:
        newest, version = self._newest_epoch()
        if newest == epoch:
            self._client.commit([Check(EPOCH, version), Delete(CONTROLLER)])

    def _newest_epoch(self) -> tuple[int, int]:
        node = self._client.get(EPOCH)
        if node is None:
            raise StorageError(f"{EPOCH} is missing in ZooKeeper: check whether the nodes of this cluster were removed")
        if not node.data.isdigit():
            raise StorageError(f"{EPOCH} in ZooKeeper is not a number: {node.data[:20]!r}")
        return int(node.data), node.version

    def _lead(self, term: ControllerTerm) -> None:
        if self._fence is None or self._fence[0] != term.epoch:
            epoch, version = self._newest_epoch()
            if epoch != term.epoch:
                self._wake.set()
                return
            self._fence = (epoch, version)
        self._report(term)

    def _follow(self, term: ControllerTerm | None) -> None:
        fence, self._fence = self._fence, None
        if fence is not None:
            self._abandoned_epoch = max(self._abandoned_epoch, fence[0])
        self._report(term)

    def _report(self, term: ControllerTerm | None) -> None:
        if term != self._reported:
            self._reported = term
            self._on_change(term)

    def _on_disconnected(self) -> None:
        silent_s = time.monotonic() - self._last_contact_s
        if silent_s > _SHORT_DISCONNECT_S and self._log_limit.allows(_DISCONNECTED):
            logger.warning(
                "ZooKeeper does not respond: no elections and no metadata changes until it does",
                extra={"zookeeper": self._client.address},
            )
        if silent_s > self._session_timeout_s:
            self._follow(None)

    def _publish(self) -> None:
        session = self._client.session_id
        if self._announcement is None or self._announced_session == session:
            return
        path, data = self._announcement
        node = self._client.get(path)
        if node is None or node.owner != session or node.data != data:
            before: list[Operation] = [Delete(path)] if node is not None else []
            self._client.commit([*before, Create(path, data, is_ephemeral=True)])
        self._announced_session = session

    def _changed(self, _: object) -> None:
        self._wake.set()


def _now_ms() -> str:
    return str(time.time_ns() // 1_000_000)


def _controller_json(term: ControllerTerm) -> bytes:
    epoch, node_id, host, port = term
    entry = {"version": 1, "brokerid": node_id, "timestamp": _now_ms(), "host": host, "port": port, "epoch": epoch}
    return json.dumps(entry).encode()


def _parse_controller(node: Node) -> ControllerTerm:
    try:
        entry = json.loads(node.data)
        return ControllerTerm(int(entry["epoch"]), int(entry["brokerid"]), str(entry["host"]), int(entry["port"]))
    except (ValueError, KeyError, TypeError):
        raise StorageError(
            f"{CONTROLLER} in ZooKeeper was written by another system ({node.data[:200]!r}): give each cluster its own "
            "chroot, as in zookeeper.connect=host:2181/moldau"
        ) from None


def _broker_json(endpoints: Sequence[Endpoint], rack: str | None) -> bytes:
    """As Apache Kafka 2 and 3 wrote it; host and port are those of a client without security, for the oldest tools."""
    plain = next(((host, port) for _, host, port, protocol in endpoints if protocol == "PLAINTEXT"), (None, -1))
    entry = {
        "listener_security_protocol_map": {name: protocol for name, _, _, protocol in endpoints},
        "endpoints": [f"{name}://{host}:{port}" for name, host, port, _ in endpoints],
        "jmx_port": -1,
        "features": {},
        "host": plain[0],
        "port": plain[1],
        "timestamp": _now_ms(),
        "version": 5,
    }
    return json.dumps(entry if rack is None else {**entry, "rack": rack}).encode()

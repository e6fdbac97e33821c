"""The election through ZooKeeper, with Kafka's own nodes.

    /controller          ephemeral: the controller, gone with its session
    /controller_epoch    the number of the newest epoch; its version is the fence
    /brokers/ids/<id>    ephemeral: a broker that lives, for tools that look there

To begin an epoch is one transaction: `/controller` is created and `/controller_epoch` set, if nobody else has set it
since. Every write of a controller checks that version, so whatever becomes of sessions and watches, a deposed one can
write nothing. That allows `take_over`: to take the place of a controller whose session did not end yet.

A controller that loses contact goes on when it finds its session again in time. Later, nobody here can know who leads:
then it counts as deposed, and begins an epoch of its own when contact is back.
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
from moldau.metadata.stores.store import Candidate, Endpoint, Leadership, OnChange
from moldau.metadata.stores.zookeeper_client import (
    Check,
    Create,
    Delete,
    LostContactError,
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

# Watches tell of changes; this is for what no watch tells: that contact is lost for too long, or an error went away.
_LOOK_AGAIN_S = 1.0
# Contact that is lost for less is not worth a message: a client moves from one server of the ensemble to another.
_BLIP_S = 2.0
_AWAY = "away"


class ZooKeeperElection:
    def __init__(self, client: ZooKeeperClient, session_timeout_s: float, wake: threading.Event) -> None:
        self._client = client
        self._session_timeout_s = session_timeout_s
        self._wake = wake
        self._candidate = Candidate(-1, "", 0)
        self._on_change: OnChange = lambda _: None
        self._stands = False
        self._fence: tuple[int, int] | None = None
        self._told: Leadership | None = None
        self._given_up_epoch = self._taken_over_epoch = -1
        self._contact_s = 0.0  # the newest time at which ZooKeeper is known to have heard of this session
        self._announcement: tuple[str, bytes] | None = None
        self._announced_session = 0
        self._closing = False
        self._log_limit = LogLimit()
        self._watcher = threading.Thread(target=self._run, name="moldau-election", daemon=True)

    def open(self) -> None:
        self._client.make_path(BROKERS)
        if self._client.get(EPOCH) is None:
            with contextlib.suppress(RefusedError):  # another broker was first
                self._client.commit([Create(EPOCH, b"0")])

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        self._candidate = candidate
        self._on_change = on_change
        self._stands = True
        self._contact_s = time.monotonic()
        node = self._client.get(CONTROLLER)
        leadership = _leadership(node) if node is not None else None
        self._told = leadership if leadership is not None and not self._is_gone(leadership) else None
        on_change(self._told)
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

    def give_up(self, epoch: int) -> None:
        """What the controller of `epoch` wrote last is in doubt: whoever comes next begins with what is there."""
        self._given_up_epoch = max(self._given_up_epoch, epoch)
        self._wake.set()

    def take_over(self, epoch: int) -> None:
        self._taken_over_epoch = epoch
        self._wake.set()

    def resign(self) -> None:
        self._stands = False
        fence, self._fence = self._fence, None
        if fence is not None:
            self.give_up(fence[0])
            try:
                self._withdraw(fence[0])
            except (LostContactError, RefusedError) as error:
                logger.info("cannot resign as controller yet, will retry", extra={"why": str(error)})
        self._wake.set()

    def stand(self) -> None:
        self._stands = True
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._client.close()  # ends whatever the watcher waits for
        self._wake.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_LOOK_AGAIN_S)
            self._wake.clear()
            if self._closing:
                return
            try:
                self._look()
            except LostContactError:
                self._notice_silence()
            except RefusedError:
                self._wake.set()  # somebody else was quicker
            except Exception as error:  # whatever it was: without this thread the broker hears of no controller again
                if self._log_limit.allows(str(error)):
                    logger.error("cannot take part in the controller election, will retry", extra={"why": str(error)})
                self._follow(None)

    def _look(self) -> None:
        if not self._client.is_connected:
            self._notice_silence()
            return
        asked_s = time.monotonic()
        self._publish()
        node = self._client.get(CONTROLLER, on_change=self._changed)
        self._contact_s = asked_s
        if self._log_limit.reset(_AWAY):
            logger.info("ZooKeeper responds again", extra={"zookeeper": self._client.address})
        if node is None:
            self._follow(None)
            if self._stands:
                self._begin_epoch(None)
            return
        leadership = _leadership(node)
        is_ours = node.owner == self._client.session_id
        if is_ours and self._stands and leadership.epoch > self._given_up_epoch:
            self._lead(leadership)
        elif self._stands and (is_ours or self._is_gone(leadership)):
            self._follow(None)
            self._begin_epoch(leadership)
        elif is_ours:
            self._follow(None)
            self._withdraw(leadership.epoch)
        else:
            self._follow(leadership)

    def _is_gone(self, leadership: Leadership) -> bool:
        # At our own address, in another session, it was an earlier life of this broker.
        return leadership.epoch == self._taken_over_epoch or leadership[1:] == self._candidate

    def _begin_epoch(self, predecessor: Leadership | None) -> None:
        epoch, version = self._newest_epoch()
        if predecessor is not None and predecessor.epoch != epoch:
            self._wake.set()  # it has a successor by now
            return
        leadership = Leadership(epoch + 1, *self._candidate)
        operations: list[Operation] = [SetData(EPOCH, b"%d" % leadership.epoch, version)]
        if predecessor is not None:
            operations.append(Delete(CONTROLLER))
        operations.append(Create(CONTROLLER, _controller_json(leadership), is_ephemeral=True))
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

    def _lead(self, leadership: Leadership) -> None:
        if self._fence is None or self._fence[0] != leadership.epoch:
            epoch, version = self._newest_epoch()
            if epoch != leadership.epoch:
                self._wake.set()
                return
            self._fence = (epoch, version)
        self._tell(leadership)

    def _follow(self, leadership: Leadership | None) -> None:
        fence, self._fence = self._fence, None
        if fence is not None:
            self._given_up_epoch = max(self._given_up_epoch, fence[0])
        self._tell(leadership)

    def _tell(self, leadership: Leadership | None) -> None:
        if leadership != self._told:
            self._told = leadership
            self._on_change(leadership)

    def _notice_silence(self) -> None:
        silent_s = time.monotonic() - self._contact_s
        if silent_s > _BLIP_S and self._log_limit.allows(_AWAY):
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


def _controller_json(leadership: Leadership) -> bytes:
    epoch, node_id, host, port = leadership
    entry = {"version": 1, "brokerid": node_id, "timestamp": _now_ms(), "host": host, "port": port, "epoch": epoch}
    return json.dumps(entry).encode()


def _leadership(node: Node) -> Leadership:
    try:
        entry = json.loads(node.data)
        return Leadership(int(entry["epoch"]), int(entry["brokerid"]), str(entry["host"]), int(entry["port"]))
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

"""The metadata of brokers on several machines, in an ensemble of ZooKeeper servers.

    /moldau/snapshots/<version>    the image of that version
    /moldau/entries/<version>      one append, which leads to that version
    /moldau/parts/<epoch>-<n>      a piece of either, where it is larger than a node can be

Every write is a transaction that begins with the fence of the election (`zookeeper_election`). Pieces are written
first, and count from the moment that a snapshot or an entry names them: so an append is there as a whole or not at
all. Pieces that no node names, and what a snapshot has replaced, are deleted by the next controller.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from moldau.errors import FencedControllerError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.stores.entries import append_entry, read_append, read_snapshot, snapshot_entry
from moldau.metadata.stores.store import Candidate, Endpoint, OnChange
from moldau.metadata.stores.zookeeper_client import ConnectionLossError, Create, Delete, RefusedError, ZooKeeperClient
from moldau.metadata.stores.zookeeper_election import ZooKeeperElection

logger = logging.getLogger(__name__)

_SNAPSHOTS = "/moldau/snapshots"
_ENTRIES = "/moldau/entries"
_PARTS = "/moldau/parts"

# ZooKeeper takes requests of 1 MiB (its jute.maxbuffer), with paths and the fence in them.
_PART_BYTES = 900_000
# A snapshot is worth its writing once the entries are as large as itself, and not for less than this ...
_SNAPSHOT_MIN_BYTES = 1024 * 1024
# ... or are so many that reading them one by one would take long.
_SNAPSHOT_ENTRIES = 1_000
_DELETES_PER_REQUEST = 500
# Begins a node that only names its pieces; others begin with the brace of a JSON object.
_NAMES_PARTS = b"parts "

T = TypeVar("T")


class ZooKeeperStore:
    """A `MetadataStore` in the ensemble at `connect`: host:port,host:port/chroot."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = None,
        snapshot_min_bytes: int = _SNAPSHOT_MIN_BYTES,
    ) -> None:
        self._session_timeout_s = session_timeout_ms / 1000
        self._snapshot_min_bytes = snapshot_min_bytes
        wake = threading.Event()
        self._client = ZooKeeperClient(
            connect,
            session_timeout_s=self._session_timeout_s,
            connection_timeout_s=(connection_timeout_ms or session_timeout_ms) / 1000,
            on_state=wake.set,
        )
        self._election = ZooKeeperElection(self._client, self._session_timeout_s, wake)
        self._loaded_epoch = -1
        self._version = 0
        self._part_count = 0
        self._parts: set[str] = set()
        self._snapshot_version = self._snapshot_bytes = 0
        self._entry_count = self._entry_bytes = 0

    def open(self) -> None:
        self._client.open()
        for path in (_SNAPSHOTS, _ENTRIES, _PARTS):
            self._client.make_path(path)
        self._election.open()

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        self._election.campaign(candidate, on_change)

    def announce(self, node_id: int, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        self._election.announce(node_id, endpoints, rack)

    def take_over(self, epoch: int) -> None:
        self._election.take_over(epoch)

    def resign(self) -> None:
        self._election.resign()

    def campaign_again(self) -> None:
        self._election.campaign_again()

    def close(self) -> None:
        self._election.close()

    def load(self, epoch: int) -> MetadataImage:
        self._election.fence(epoch)
        image = self._retry_connection_loss(epoch, self._read)
        self._version = image.version
        self._loaded_epoch = epoch
        self._delete_old(epoch)
        return image

    def append(self, epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        self._election.fence(epoch)
        if epoch != self._loaded_epoch or image.version != self._version + len(records):
            raise StorageError(
                f"{len(records)} records after version {self._version} do not lead to version {image.version}"
            )
        if not records:
            return
        body = append_entry(epoch, image.version, records)
        self._parts.update(self._put(epoch, f"{_ENTRIES}/{image.version:019d}", body))
        self._version = image.version
        self._entry_bytes += len(body)
        self._entry_count += 1
        limit = max(self._snapshot_min_bytes, self._snapshot_bytes)
        if self._entry_bytes > limit or self._entry_count >= _SNAPSHOT_ENTRIES:
            self._write_snapshot(epoch, image)

    # -- reading

    def _read(self) -> MetadataImage:
        self._client.sync()
        snapshots, entries = self._client.children(_SNAPSHOTS), self._client.children(_ENTRIES)
        image = MetadataImage()
        self._parts = set()
        self._snapshot_version = self._snapshot_bytes = 0
        for path, body in self._read_nodes([f"{_SNAPSHOTS}/{name}" for name in snapshots[-1:]]):
            image = _replay(path, body, None)
            self._snapshot_version, self._snapshot_bytes = image.version, len(body)
        self._entry_bytes = self._entry_count = 0
        newer = [f"{_ENTRIES}/{name}" for name in entries if int(name) > image.version]
        for path, body in self._read_nodes(newer):
            image = _replay(path, body, image)
            self._entry_bytes += len(body)
            self._entry_count += 1
        return image

    def _read_nodes(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for path, node in zip(paths, self._client.get_all(paths), strict=True):
            if node is None:
                raise FencedControllerError(f"{path} was removed by a newer controller")
            if not node.data.startswith(_NAMES_PARTS):
                yield path, node.data
                continue
            names = node.data.removeprefix(_NAMES_PARTS).decode().split()
            self._parts.update(names)
            pieces = self._client.get_all([f"{_PARTS}/{name}" for name in names])
            yield path, b"".join(piece.data for piece in pieces if piece is not None)

    # -- writing

    def _write_snapshot(self, epoch: int, image: MetadataImage) -> None:
        body = snapshot_entry(epoch, image)
        # Where it fails, the entries do as well, and it is tried again when they have doubled.
        self._snapshot_bytes, self._entry_bytes, self._entry_count = max(len(body), self._entry_bytes), 0, 0
        try:
            self._parts = self._put(epoch, f"{_SNAPSHOTS}/{image.version:019d}", body)
        except StorageError as error:
            logger.warning("cannot write a metadata snapshot, will retry", extra={"why": str(error)})
            return
        self._snapshot_version, self._snapshot_bytes = image.version, len(body)
        self._delete_old(epoch)

    def _put(self, epoch: int, path: str, body: bytes) -> set[str]:
        """Makes a node of `body`; the names of the pieces that it needed."""
        if len(body) <= _PART_BYTES:
            self._commit(epoch, Create(path, body))
            return set()
        names = []
        for start in range(0, len(body), _PART_BYTES):
            self._part_count += 1
            names.append(f"{epoch:010d}-{self._part_count:010d}")
            self._commit(epoch, Create(f"{_PARTS}/{names[-1]}", body[start : start + _PART_BYTES]))
        self._commit(epoch, Create(path, _NAMES_PARTS + " ".join(names).encode()))
        return set(names)

    def _commit(self, epoch: int, create: Create) -> None:
        is_in_doubt = False

        def try_it() -> None:
            nonlocal is_in_doubt
            if is_in_doubt:
                # The first try may have done it. A node of a later controller has another epoch in it.
                node = self._client.get(create.path)
                if node is not None and node.data == create.data:
                    return
            is_in_doubt = True
            self._client.commit([self._election.fence(epoch), create])

        try:
            self._retry_connection_loss(epoch, try_it)
        except RefusedError as error:
            self._election.abandon(epoch)
            if error.position == 0:
                raise FencedControllerError(f"controller epoch {epoch} is fenced by a newer controller") from error
            raise

    def _retry_connection_loss(self, epoch: int, work: Callable[[], T]) -> T:
        """Tries again after the connection was lost, for as long as the session can last."""
        deadline_s = time.monotonic() + self._session_timeout_s
        while True:
            try:
                return work()
            except ConnectionLossError:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._client.wait_until_connected(left_s):
                    self._election.abandon(epoch)
                    raise

    def _delete_old(self, epoch: int) -> None:
        """Deletes what the snapshot has replaced, and pieces that no node names. What fails is deleted next time."""
        try:
            garbage = [f"{_PARTS}/{name}" for name in self._client.children(_PARTS) if name not in self._parts]
            for folder, version in ((_SNAPSHOTS, self._snapshot_version - 1), (_ENTRIES, self._snapshot_version)):
                garbage += [f"{folder}/{name}" for name in self._client.children(folder) if int(name) <= version]
            for start in range(0, len(garbage), _DELETES_PER_REQUEST):
                deletes = [Delete(path) for path in garbage[start : start + _DELETES_PER_REQUEST]]
                self._client.commit([self._election.fence(epoch), *deletes])
        except StorageError as error:
            logger.info("cannot delete old metadata, will retry", extra={"why": str(error)})


def _replay(path: str, body: bytes, image: MetadataImage | None) -> MetadataImage:
    try:
        entry = json.loads(body)
        return read_snapshot(entry) if image is None else read_append(image, entry)
    except (ValueError, KeyError, TypeError, AttributeError, StorageError) as error:
        raise StorageError(
            f"the metadata in ZooKeeper is damaged at {path}: {error}. Restore the ensemble from a backup; continuing "
            "without it would lose topics."
        ) from error

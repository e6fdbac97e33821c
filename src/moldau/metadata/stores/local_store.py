"""The metadata of a broker without a cluster: one file in its data folder (`journal`).

One process at a time has the folder: the data directory's lock sees to that. So this broker is the controller, at
once, in an epoch behind the newest one of the file. The epoch is kept with the first append of it, which spares a flush
at each start: an epoch in which nothing was written may come again, and nothing can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moldau.disk import OS_DISK, Disk
from moldau.errors import FencedControllerError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.stores.journal import SNAPSHOT_MIN_BYTES, Journal
from moldau.metadata.stores.store import Candidate, ControllerTerm, Endpoint, OnChange


class LocalStore:
    """A `MetadataStore` over the file at `path`."""

    def __init__(self, path: Path | str, *, disk: Disk = OS_DISK, snapshot_min_bytes: int = SNAPSHOT_MIN_BYTES) -> None:
        self._disk = disk
        self._journal = Journal(Path(path), disk=disk, snapshot_min_bytes=snapshot_min_bytes)
        self._image = MetadataImage()
        self._epoch = 0

    def open(self) -> None:
        if self._disk.exists(self._journal.path):
            self._image = self._journal.open()
        else:
            self._journal.create(self._image, epoch=0)

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        self._epoch = self._journal.epoch + 1
        on_change(ControllerTerm(self._epoch, *candidate))

    def announce(self, node_id: int, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """No tool looks for a broker in this file."""

    def take_over(self, epoch: int) -> None:
        """There is no other controller."""

    def load(self, epoch: int) -> MetadataImage:
        self._check(epoch)
        return self._image

    def append(self, epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        self._check(epoch)
        self._journal.append(epoch, records, image)
        self._image = image
        self._journal.snapshot_if_due(image)

    def campaign_again(self) -> None:
        """This broker is always elected."""

    def resign(self) -> None:
        self._epoch = 0

    def close(self) -> None:
        self._journal.close()

    def _check(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise FencedControllerError(f"controller epoch {epoch} is fenced; the current epoch is {self._epoch}")

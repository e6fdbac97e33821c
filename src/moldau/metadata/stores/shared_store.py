"""The metadata of several brokers on one machine: a folder that they share (`moldau.metadata.dir`), on a local disk.

    controllers               who claimed which epoch (`claims`)
    broker-<id>.lock          tells whether that broker lives (`shared_election`)
    metadata-<epoch>.jsonl    the metadata, as the controller of that epoch found and left it (`journal`)

Each controller writes a file of its own, so an earlier one that wakes up, in the middle of a write even, finds nothing
it could disturb. A new one claims its epoch first and reads the file of its predecessor then; the predecessor writes
first and looks for later claims then. So what was acknowledged was read, and what was not read is not acknowledged.
No lock is held meanwhile: a stopped process would keep it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from moldau.errors import FencedControllerError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.stores.journal import SNAPSHOT_MIN_BYTES, Journal
from moldau.metadata.stores.shared_election import SharedElection
from moldau.metadata.stores.store import Candidate, Endpoint, OnChange


class SharedStore:
    """A `MetadataStore` over `folder`, for any number of processes of one machine."""

    def __init__(
        self,
        folder: Path | str,
        *,
        session_timeout_ms: int = 9_000,
        snapshot_min_bytes: int = SNAPSHOT_MIN_BYTES,
    ) -> None:
        self._folder = Path(folder)
        self._snapshot_min_bytes = snapshot_min_bytes
        self._election = SharedElection(self._folder, session_timeout_ms / 1000)
        self._journal: Journal | None = None

    def open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._election.open(epoch_floor=max((epoch for epoch, _ in self._files()), default=0))
        except OSError as error:
            raise StorageError(f"cannot use moldau.metadata.dir={self._folder}: {error}") from error

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        self._election.campaign(candidate, on_change)

    def announce(self, node_id: int, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """No tool looks for brokers in this folder."""

    def take_over(self, epoch: int) -> None:
        self._election.take_over(epoch)

    def load(self, epoch: int) -> MetadataImage:
        self._check(epoch)
        image = self._read_newest()
        if self._journal is not None:
            self._journal.close()
        path = self._folder / f"metadata-{epoch:010d}.jsonl"
        self._journal = Journal(path, snapshot_min_bytes=self._snapshot_min_bytes)
        self._journal.create(image, epoch)
        self._check(epoch)
        for earlier, old in self._files():
            if earlier < epoch:
                old.unlink(missing_ok=True)
                old.with_name(old.name + ".tmp").unlink(missing_ok=True)
        return image

    def append(self, epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        self._check(epoch)
        if self._journal is None or self._journal.epoch != epoch:
            raise StorageError(f"the controller with epoch {epoch} has not loaded the metadata")
        self._journal.append(epoch, records, image)
        self._check(epoch)
        self._journal.snapshot_if_due(image)

    def resign(self) -> None:
        self._election.resign()

    def campaign_again(self) -> None:
        self._election.campaign_again()

    def close(self) -> None:
        self._election.close()
        if self._journal is not None:
            self._journal.close()

    def _check(self, epoch: int) -> None:
        if not self._election.leads(epoch):
            raise FencedControllerError(f"controller epoch {epoch} is fenced by a newer controller")

    def _read_newest(self) -> MetadataImage:
        while True:
            files = self._files()
            if not files:
                return MetadataImage()
            # Gone means that a later controller has a newer one by now.
            with contextlib.suppress(FileNotFoundError):
                return Journal(files[-1][1]).read()

    def _files(self) -> list[tuple[int, Path]]:
        """The files of metadata with their epochs, the newest last."""
        return sorted(
            (int(path.stem.removeprefix("metadata-")), path) for path in self._folder.glob("metadata-*.jsonl")
        )

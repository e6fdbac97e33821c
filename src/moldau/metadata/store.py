"""Where metadata is kept: on one machine in a file (`local_store`), across machines in an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record


class MetadataStore(Protocol):
    def open(self) -> MetadataImage:
        """The image as it was last kept; an empty one where nothing was."""

    def append(self, records: Sequence[Record]) -> MetadataImage:
        """Keep `records`, all or none, and give the image with them; they are durable when this returns."""

    def close(self) -> None: ...

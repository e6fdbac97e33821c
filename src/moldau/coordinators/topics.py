"""What the coordinators need to know of topics; the metadata image gives it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """Always the current state of the cluster, however long it is held."""

    def partition_count(self, name: str) -> int | None: ...
    def topic_id(self, name: str) -> uuid.UUID | None: ...
    def topic_name(self, topic_id: uuid.UUID) -> str | None: ...
    def names(self) -> Iterable[str]: ...

"""The name of a partition, as the whole project uses it: a key of dictionaries, and "topic-0" to people."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

"""Records that a query leaves out of its current batch, because the batch fails with them. They are dead letters.

Which records these are is written to a file beside the checkpoint first, and then they are written to the topic of the
dead letters. In between, a process may be killed at any point:

    | killed                                | the next start                                                       |
    |---------------------------------------|----------------------------------------------------------------------|
    | before the file is written            | the batch fails again and is searched again                          |
    | before the dead letters are written   | writes them, then leaves the records out                             |
    | before the file says that they are    | writes them again, which changes nothing (below), and leaves them out|
    | later                                 | leaves them out, until the batch is done; then the file has no effect|

So a record is processed or a dead letter, never both and never neither. The dead letters of a search are one
transaction whose id is made of the query, the source and the number of the search. A record that is committed with it
says that it was done, so a second attempt writes nothing (`moldau.spark.sink.exactly_once`). `sending` does this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog
from moldau.pipelines.engine.checkpoints.folders import Folder
from moldau.spark.source.offsets import ranges_to_json
from moldau.spark.source.read_plan import OffsetRange

FILE = "moldau-left-out.json"


@dataclass(frozen=True)
class LeftOutRecord:
    source: str
    topic: str
    partition: int
    offset: int
    reason: str
    search: int  # in which it was found

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.offset, self.offset + 1)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


@dataclass(frozen=True)
class LeftOut:
    batch_id: int  # the only batch that it is about
    search: int  # the number of the last search of this query, of any batch
    is_sent: bool  # the dead letters of the last search are written
    records: tuple[LeftOutRecord, ...]

    @classmethod
    def load(cls, folder: Folder) -> LeftOut | None:
        text = folder.read(FILE)
        if text is None:
            return None
        found: dict[str, Any] = json.loads(text)
        return cls(**found | {"records": tuple(LeftOutRecord(**record) for record in found["records"])})

    def save(self, folder: Folder) -> None:
        folder.write(FILE, json.dumps(asdict(self), indent=1))

    def with_records(self, batch_id: int, records: Sequence[LeftOutRecord]) -> LeftOut:
        """With the records that another search has found."""
        kept = self.records if self.batch_id == batch_id else ()
        return LeftOut(batch_id, self.search + 1, is_sent=False, records=(*kept, *records))


def excluded(folder: Folder) -> dict[str, str]:
    """What each source leaves out of the batch that is to be repeated, as the option `excludedOffsets`."""
    left_out = LeftOut.load(folder)
    if left_out is None or not left_out.is_sent or not is_pending(CheckpointLog(folder), left_out.batch_id):
        return {}
    sources = {record.source for record in left_out.records}
    return {
        source: json.dumps(ranges_to_json(record.range for record in left_out.records if record.source == source))
        for source in sources
    }


def is_pending(log: CheckpointLog, batch_id: int) -> bool:
    last = log.last_batch
    return last is not None and last.batch_id == batch_id and not last.is_finished

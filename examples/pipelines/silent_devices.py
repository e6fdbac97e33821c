"""The step of stateful-python.yaml."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

SILENT_MS = 10 * 60 * 1000


class SilentDevices(StatefulProcessor):
    """Remembers the last report of a device, and has one timer: when it will have been silent for too long."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "at_ms BIGINT, battery INT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        reports = [(int(row["at"].timestamp() * 1000), row["battery"]) for row in rows]
        before = self.last.get()
        at_ms, battery = max([*reports, *([tuple(before)] if before else [])])
        self.last.update((at_ms, battery))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(at_ms + SILENT_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        if (last := self.last.get()) is not None:
            at_ms, battery = last
            self.last.clear()
            yield Row(device=key[0], last_seen=datetime.fromtimestamp(at_ms / 1000, UTC), battery=battery)


def find_silent(reports: DataFrame) -> DataFrame:
    return reports.groupBy("device").transformWithState(
        statefulProcessor=SilentDevices(),
        outputStructType="device STRING, last_seen TIMESTAMP, battery INT",
        outputMode="append",
        timeMode="EventTime",
    )

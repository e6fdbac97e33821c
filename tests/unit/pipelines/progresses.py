"""Spark's progress of a batch, as text has it."""

from __future__ import annotations

from typing import Any


def offsets(*ends: int) -> dict[str, dict[str, int]]:
    return {"clicks": {str(index): end for index, end in enumerate(ends)}}


def batch(number: int, rows_in: int = 0, rows_out: int | None = 0, run: str = "r", **more: Any) -> dict[str, Any]:
    """`rows_out` None: a sink by foreachBatch, whose rows Spark does not count."""
    return {
        "runId": run,
        "name": "shop.counts",
        "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
        "batchId": number,
        "batchDuration": 250,
        "numInputRows": rows_in,
        "durationMs": {"triggerExecution": 250},
        "eventTime": {},
        "stateOperators": [],
        "sources": [],
        "sink": {"numOutputRows": -1 if rows_out is None else rows_out},
        **more,
    }


def topic_source(end: tuple[int, ...], latest: tuple[int, ...]) -> dict[str, Any]:
    return {"startOffset": offsets(*(0 for _ in end)), "endOffset": offsets(*end), "latestOffset": offsets(*latest)}

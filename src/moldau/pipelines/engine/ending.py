"""Ends a streaming query after the batch it is in. Spark's own `stop()` interrupts the batch.

Spark's loop asks after each batch whether the query is still active, and `stop()` first marks it as not active, then
interrupts its thread. Here it is only marked. That uses internals of Spark, through py4j. Where they cannot be reached
(Spark Connect), the query is stopped in Spark's way, and the interrupted batch is repeated at the next start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.pipelines.engine.internals import stream_execution

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def end_after_batch(query: StreamingQuery) -> None:
    """Returns at once; the query has ended when `is_over` says so."""
    execution = stream_execution(query)
    if execution is None:
        query.stop()
        return
    state = execution.state()
    state.set(_terminated(state.get()))


def is_over(query: StreamingQuery) -> bool:
    """Also tidies up after a query that was told to end and waits for its next batch."""
    if query.isActive:
        return False
    execution = stream_execution(query)
    if execution is None or not execution.queryExecutionThread().isAlive():
        return True
    if query.status["isTriggerActive"]:
        return False
    query.stop()
    return True


def has_nothing_new(query: StreamingQuery) -> bool:
    """Whether all sources were asked and had nothing. Its status rarely tells: they wait for records themselves."""
    execution = stream_execution(query)
    return execution is not None and bool(execution.noNewData())


def _terminated(state: Any) -> Any:
    """The object TERMINATED beside the state ACTIVE. Its package is another in other releases of Spark."""
    package = state.getClass().getPackageName()
    loader = state.getClass().getClassLoader()
    return loader.loadClass(f"{package}.TERMINATED$").getField("MODULE$").get(None)

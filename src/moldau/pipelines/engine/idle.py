"""What a query with nothing to do costs: how it waits for new records.

Spark asks every source for news, one after the other, and again 10 ms later. That is a sixth of a core for one idle
query. If all sources of a query are topics, one of them waits at the brokers for records of all of them (see
`moldau.spark.source.idle_wait`): new records are noticed at once, and an idle query asks once a second. Other sources
cannot wait, so queries that have some ask ten times a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline
from moldau.pipelines.model.references import resolve

POLLING_DELAY = "spark.sql.streaming.pollingDelay"
WAIT_MS = 1_000  # a query that is asked to end notices it after this long at the latest; twice as long saves little
_POLLING_DELAY_MS = 100
# A source with one of these may have more to read although nothing new has come, which the one that waits cannot know.
_PACED = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")


def idle_waits(pipeline: Pipeline, view: str, *, has_trigger: bool) -> dict[str, dict[str, Any]]:
    """How sources of a view's query wait, as fields of their `ReadRequest`; empty: they do not."""
    sources = tuple(source for source in pipeline.sources_of(view) if not source.is_static)  # tables start no batch
    needed = pipeline.needed_by(view)
    # A function that gets the session may open streams that nobody else knows of.
    is_open = any("spark" in step.inputs for step in pipeline.steps if step.name in needed)
    if has_trigger or is_open or not sources or any(source.connector != "topic" for source in sources):
        return {}
    options = [resolve(source.options, pipeline.folder) for source in sources]
    if len(sources) > 1 and not _are_watched_together(options):
        return {}
    topics = tuple(str(other["topic"].value) for other in options[1:])
    return {sources[0].name: {"idle_wait_ms": WAIT_MS, "idle_wait_topics": topics}}


def idle_settings(waits: Mapping[str, object]) -> dict[str, str]:
    """Settings of the query's session; the user's win."""
    return {} if waits else {POLLING_DELAY: f"{_POLLING_DELAY_MS}ms"}


def _are_watched_together(options: Sequence[Mapping[str, Given]]) -> bool:
    """One source can wait for all: each is one topic of the same cluster, read as far as there is anything."""
    clients = [{name: given.value for name, given in source.items() if name.startswith("kafka.")} for source in options]
    return all(
        client == clients[0] and "topic" in source and not any(name in source for name in _PACED)
        for client, source in zip(clients, options, strict=True)
    )

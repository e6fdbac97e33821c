"""Steps that a sink applies to each micro-batch."""

from __future__ import annotations

from typing import Any

from moldau.pipelines.connectors.base import BatchSink
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.model.options import Given


def test_batch_steps_come_before_what_the_sink_does_to_its_rows() -> None:
    written: list[Any] = []
    sink = BatchSink(
        lambda rows, batch_id: written.append((rows, batch_id)),
        rows=lambda rows: f"rows({rows})",  # type: ignore[arg-type, return-value]
        trial=lambda rows: f"trial({rows})",  # type: ignore[arg-type, return-value]
    )
    steps: list[Any] = [lambda rows: f"first({rows})", lambda rows: f"second({rows})"]
    behind: Any = sink.after(steps)
    assert behind.rows("batch") == "batch"  # of the stream: the steps need a batch
    behind.write("batch", 7)
    assert written == [("rows(second(first(batch)))", 7)]
    assert behind.trial("batch") == "trial(rows(second(first(batch))))"


def test_a_topic_sink_of_bytes_may_leave_its_topic_to_a_column() -> None:
    topic = connector("topic")
    assert not list(topic.check({"format": Given("bytes")}, is_source=False))
    (missing,) = topic.check({}, is_source=False)
    assert "needs the option 'topic'" in missing.message
    (key,) = topic.check({"format": Given("bytes"), "key": Given("id")}, is_source=False)
    assert key.message == "key has no effect with `format: bytes`: make it a column"

"""Positions as JSON, and how far a trigger goes."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import ConfigError
from moldau.spark.source.offsets import StreamOffset, limited
from moldau.spark.source.query_progress import Progress, progress_of
from moldau.wire.topic_partition import TopicPartition

TOPICS = ["a", "b.c", "d-e_f"]
PARTITIONS = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 20))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1))


def test_positions_are_written_as_sparks_kafka_source_writes_them() -> None:
    offset = StreamOffset({TopicPartition("b", 10): 5, TopicPartition("b", 9): 4, TopicPartition("a", 0): 1}, {})
    assert json.dumps(offset.to_json()) == '{"a": {"0": 1}, "b": {"9": 4, "10": 5}}'


@given(
    positions=OFFSETS,
    joined=OFFSETS,
    topic_ids=st.dictionaries(st.sampled_from(TOPICS), st.uuids()),
    epochs=st.dictionaries(PARTITIONS, st.integers(0, 2**31 - 1)),
)
def test_positions_survive_the_checkpoint(
    positions: dict[TopicPartition, int],
    joined: dict[TopicPartition, int],
    topic_ids: dict[str, UUID],
    epochs: dict[TopicPartition, int],
) -> None:
    offset = StreamOffset(positions, joined, topic_ids, epochs)
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_what_is_kept_beside_the_positions_is_nothing_to_sparks_kafka_source() -> None:
    """It takes every key for a topic and every value for the offsets of its partitions."""
    topic_id = UUID(int=7)
    offset = StreamOffset(
        {TopicPartition("a", 0): 9},
        {TopicPartition("a", 0): 5},
        {"a": topic_id},
        {TopicPartition("a", 0): 3, TopicPartition("a", 1): 4},
    )
    assert offset.to_json() == {
        "a": {"0": 9},
        "(starts of a) 0:5": {},
        "(id of a) AAAAAAAAAAAAAAAAAAAABw": {},
        "(leader epochs of a) 0:3 1:4": {},
    }


def test_starts_are_read_as_they_were_once_written() -> None:
    written = {"a": {"0": 9}, "(startingOffsets)": {"a": {"0": 5}}}
    assert StreamOffset.from_json(written) == StreamOffset({TopicPartition("a", 0): 9}, {TopicPartition("a", 0): 5})


def test_a_query_that_started_without_partitions_is_not_one_that_did_not_start() -> None:
    assert StreamOffset({}, {}).to_json() != {}


@pytest.mark.parametrize(
    "value", [{"0": 5}, {"t": {"x": 5}}, {"t": {"0": "5"}}, {"t": {"-1": 5}}, {"t": [5]}, {"(id of t) x": {}}]
)
def test_a_checkpoint_of_another_source_is_told(value: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the checkpoint has no offsets of topics"):
        StreamOffset.from_json(value)


def test_a_limit_is_shared_by_what_waits_and_none_starves() -> None:
    start = {
        TopicPartition("t", 0): 0,
        TopicPartition("t", 1): 100,
        TopicPartition("t", 2): 7,
        TopicPartition("t", 3): 50,
    }
    end = {
        TopicPartition("t", 0): 900,
        TopicPartition("t", 1): 200,
        TopicPartition("t", 2): 8,
        TopicPartition("t", 3): 50,
    }
    assert limited(start, end, 100) == {
        TopicPartition("t", 0): 89,
        TopicPartition("t", 1): 109,
        TopicPartition("t", 2): 8,
        TopicPartition("t", 3): 50,
    }
    assert limited(start, end, 5000) == end


@given(start=OFFSETS, sizes=st.dictionaries(PARTITIONS, st.integers(0, 10**12)), rows_max=st.integers(1, 10**9))
def test_limited_batches_move_on_and_never_too_far(
    start: dict[TopicPartition, int], sizes: dict[TopicPartition, int], rows_max: int
) -> None:
    begin = {tp: start.get(tp, 0) for tp in sizes}
    end = {tp: begin[tp] + size for tp, size in sizes.items()}
    reached = limited(begin, end, rows_max)
    assert all(begin[tp] <= reached[tp] <= end[tp] for tp in end)
    assert all(reached[tp] > begin[tp] for tp in end if end[tp] > begin[tp])
    assert sum(reached[tp] - begin[tp] for tp in end) <= rows_max + len(end)


def test_progress_has_numbers_per_partition_and_prints_as_a_table() -> None:
    progress = progress_of(
        "views",
        {
            "batchId": 7,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "numInputRows": 1500,
            "inputRowsPerSecond": 900.0,
            "processedRowsPerSecond": 3000.4,
            "durationMs": {"triggerExecution": 500},
            "sources": [
                {
                    "startOffset": '{"page-views": {"0": 1000}}',
                    "endOffset": json.dumps(
                        StreamOffset(
                            {TopicPartition("page-views", 0): 2000, TopicPartition("page-views", 1): 500},
                            {TopicPartition("page-views", 1): 0},
                        ).to_json()
                    ),
                    "latestOffset": '{"page-views": {"0": 2500, "1": 500}}',
                },
                {"startOffset": None, "endOffset": "17", "latestOffset": None},
            ],
        },
    )
    assert [(p.start, p.end, p.latest, p.rows, p.lag) for p in progress.partitions] == [
        (1000, 2000, 2500, 1000, 500),
        (0, 500, 500, 500, 0),
    ]
    assert progress.lag == 500
    assert str(progress).splitlines() == [
        "views: batch 7, 1,500 rows in 500 ms (3,000 rows/s), lag 500",
        "topic       partition  start    end  latest  lag",
        "page-views          0  1,000  2,000   2,500  500",
        "page-views          1      0    500     500    0",
    ]


def test_progress_before_the_first_batch_says_so() -> None:
    assert str(Progress("views")) == "views: no batch yet"


def test_progress_of_a_batch_without_news_starts_where_the_last_one_ended() -> None:
    ended = json.dumps(StreamOffset({TopicPartition("orders", 0): 3}, {TopicPartition("orders", 0): 0}).to_json())
    progress = progress_of(
        "orders",
        {
            "batchId": 1,
            "timestamp": "2026-01-01T00:00:00.000Z",
            "numInputRows": 0,
            "sources": [{"startOffset": ended, "endOffset": ended, "latestOffset": None}],
        },
    )
    assert [(p.start, p.end) for p in progress.partitions] == [(3, 3)]

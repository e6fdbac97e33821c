from __future__ import annotations

import json
import typing
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import StorageError
from moldau.metadata.records import (
    BrokerRecord,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    record_from_json,
    record_to_json,
)

ids = st.uuids()
numbers = st.integers(0, 2**31 - 1)
brokers = st.lists(numbers, max_size=4).map(tuple)
texts = st.text(max_size=20)
STRATEGIES: dict[type, st.SearchStrategy[Record]] = {
    TopicRecord: st.builds(TopicRecord, texts, ids),
    RemoveTopicRecord: st.builds(RemoveTopicRecord, ids),
    PartitionRecord: st.builds(
        PartitionRecord, ids, numbers, brokers, brokers, numbers, numbers, numbers, brokers, brokers, brokers, brokers
    ),
    ConfigRecord: st.builds(ConfigRecord, texts, texts, texts, st.none() | texts),
    ProducerIdsRecord: st.builds(ProducerIdsRecord, st.integers(0, 2**63 - 1)),
    BrokerRecord: st.builds(
        BrokerRecord,
        numbers,
        numbers,
        st.lists(st.tuples(texts, texts, numbers, texts), max_size=3).map(tuple),
        st.none() | texts,
        st.booleans(),
    ),
    RemoveBrokerRecord: st.builds(RemoveBrokerRecord, numbers),
    FeatureLevelRecord: st.builds(FeatureLevelRecord, texts, numbers),
    ClusterRecord: st.builds(ClusterRecord, texts),
}


def test_every_record_type_is_tried_below() -> None:
    assert set(STRATEGIES) == set(typing.get_args(Record))


@given(st.one_of(*STRATEGIES.values()))
def test_a_record_survives_json(record: Record) -> None:
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def test_ids_are_written_as_kafka_writes_them() -> None:
    record = RemoveTopicRecord(uuid.UUID("3a8ecba2-2ff1-4c23-8cc2-c0a1b1d7a8f4"))
    assert record_to_json(record) == {"type": "remove-topic", "topic_id": "Oo7Loi_xTCOMwsChsdeo9A"}


@pytest.mark.parametrize("data", [{}, {"type": "from-the-future"}, {"type": 3}, {"type": ["topic"]}])
def test_a_record_of_unknown_type_is_an_error_that_says_so(data: dict[str, object]) -> None:
    with pytest.raises(StorageError, match="unknown type of metadata record"):
        record_from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        {"type": "topic", "name": "a"},
        {"type": "topic", "name": "a", "topic_id": "too short"},
        {"type": "topic", "name": "a", "topic_id": 5},
        {"type": "partition", "topic_id": "Oo7Loi_xTCOMwsChsdeo9A", "index": 0, "replicas": 1},
    ],
)
def test_a_record_with_a_hole_is_an_error_that_says_so(data: dict[str, object]) -> None:
    with pytest.raises(StorageError, match=f"cannot read metadata record of type {data['type']}"):
        record_from_json(data)

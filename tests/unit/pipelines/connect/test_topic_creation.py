"""Which settings a topic is created with."""

from __future__ import annotations

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.topic_creation import TopicCreation

DEFAULT = {"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "5"}


def test_brokers_create_topics_unless_the_connector_says_how() -> None:
    assert TopicCreation.of({"topic": "t"}) is None


def test_the_first_group_that_fits_decides_and_numbers_come_from_the_default() -> None:
    groups = {
        "topic.creation.groups": "small, compact",
        "topic.creation.small.include": "s.*, tiny",
        "topic.creation.small.exclude": "s-not",
        "topic.creation.small.partitions": "1",
        "topic.creation.compact.include": ".*-not",
        "topic.creation.compact.cleanup.policy": "compact",
        "topic.creation.compact.replication.factor": "-1",
    }
    creation = TopicCreation.of(DEFAULT | groups)
    assert creation is not None
    assert creation.settings("tiny") == {"replication.factor": "1", "partitions": "1"}
    assert creation.settings("s-not") == {"partitions": "5", "cleanup.policy": "compact"}
    assert creation.settings("other") == {"replication.factor": "1", "partitions": "5"}


def test_the_default_group_needs_its_numbers() -> None:
    with pytest.raises(ConfigError, match=r"topic\.creation\.default\.partitions is missing"):
        TopicCreation.of({"topic.creation.default.replication.factor": "1"})

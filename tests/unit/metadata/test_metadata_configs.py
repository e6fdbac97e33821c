from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.configs import (
    MAX_VALUE_LENGTH,
    ConfigChange,
    ConfigOp,
    plan_alter_configs,
    plan_incremental_alter_configs,
)
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, ConfigRecord, PartitionRecord, TopicRecord

ID = uuid.UUID(int=5)
CONFIG = BrokerConfig(node_id=1)
IMAGE = MetadataImage().apply(
    [
        TopicRecord("a", ID),
        PartitionRecord(ID, 0, (1,), (1,), leader=1),
        ConfigRecord("topic", "a", "retention.ms", "5"),
        ConfigRecord("topic", "a", "flush.ms", "6"),
        BrokerRecord(2, 0, ()),
    ]
)
SET, DELETE, APPEND, SUBTRACT = ConfigOp


def alter(
    *changes: ConfigChange, image: MetadataImage = IMAGE, resource: tuple[str, str] = ("topic", "a")
) -> dict[str, str]:
    records = plan_incremental_alter_configs(image, *resource, changes, CONFIG)
    return dict(image.apply(records).configs.get(resource, {}))


def replace(configs: Sequence[tuple[str, str | None]], resource: tuple[str, str] = ("topic", "a")) -> dict[str, str]:
    return dict(IMAGE.apply(plan_alter_configs(IMAGE, *resource, configs, CONFIG)).configs.get(resource, {}))


def refusal(*changes: ConfigChange, resource: tuple[str, str] = ("topic", "a")) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        alter(*changes, resource=resource)
    return caught.value.code, caught.value.message


class TestIncremental:
    def test_only_what_is_named_changes(self) -> None:
        assert alter(ConfigChange("retention.ms", SET, "7")) == {"retention.ms": "7", "flush.ms": "6"}
        assert alter(ConfigChange("retention.ms", DELETE)) == {"flush.ms": "6"}
        assert alter(ConfigChange("segment.ms", SET, "8"), ConfigChange("flush.ms", DELETE)) == {
            "retention.ms": "5",
            "segment.ms": "8",
        }

    def test_no_change_needs_no_record(self) -> None:
        changes = [ConfigChange("retention.ms", SET, "5"), ConfigChange("segment.ms", DELETE)]
        assert plan_incremental_alter_configs(IMAGE, "topic", "a", changes, CONFIG) == []

    def test_plain_numbers_are_operations_too(self) -> None:
        assert alter(ConfigChange("retention.ms", 0, "7"))["retention.ms"] == "7"
        assert refusal(ConfigChange("retention.ms", 9, "7")) == (
            ErrorCode.INVALID_REQUEST,
            "Unknown operations type 9",
        )

    def test_lists_grow_from_their_default(self) -> None:
        assert alter(ConfigChange("cleanup.policy", APPEND, "compact"))["cleanup.policy"] == "delete,compact"
        assert alter(ConfigChange("cleanup.policy", APPEND, "delete"))["cleanup.policy"] == "delete"
        assert alter(ConfigChange("cleanup.policy", SUBTRACT, "delete"))["cleanup.policy"] == ""

    @given(st.lists(st.tuples(st.sampled_from([APPEND, SUBTRACT]), st.integers(0, 3)), max_size=8))
    def test_lists_behave_as_sets_in_order(self, steps: list[tuple[ConfigOp, int]]) -> None:
        key, image, model = "leader.replication.throttled.replicas", IMAGE, list[str]()
        for op, number in steps:
            element = f"{number}:1"
            records = plan_incremental_alter_configs(image, "topic", "a", [ConfigChange(key, op, element)], CONFIG)
            image = image.apply(records)
            if op is APPEND and element not in model:
                model.append(element)
            elif op is SUBTRACT and element in model:
                model.remove(element)
            assert image.topic_config("a")[key] == ",".join(model)

    @pytest.mark.parametrize("op", [APPEND, SUBTRACT])
    def test_what_is_no_list_cannot_grow(self, op: ConfigOp) -> None:
        assert refusal(ConfigChange("retention.ms", op, "7")) == (
            ErrorCode.INVALID_CONFIG,
            f"Can't {op.name} to key retention.ms because its type is not LIST.",
        )
        assert refusal(ConfigChange("no.such.key", op, "7"))[0] is ErrorCode.INVALID_CONFIG

    @pytest.mark.parametrize(
        ("changes", "code", "message"),
        [
            (
                [ConfigChange("retention.ms", SET, "x")],
                ErrorCode.INVALID_CONFIG,
                "Invalid value x for configuration retention.ms: Not a number of type LONG",
            ),
            (
                [ConfigChange("cleanup.policy", APPEND, "shrink")],
                ErrorCode.INVALID_CONFIG,
                "String must be one of: compact, delete",
            ),
            (
                [ConfigChange("no.such.key", SET, "1")],
                ErrorCode.INVALID_CONFIG,
                "Unknown topic config name: no.such.key",
            ),
            (
                [ConfigChange("retention.ms", SET, "1"), ConfigChange("retention.ms", DELETE)],
                ErrorCode.INVALID_REQUEST,
                "Error due to duplicate config keys",
            ),
            (
                [ConfigChange("retention.ms", SET), ConfigChange("flush.ms", APPEND)],
                ErrorCode.INVALID_REQUEST,
                "Null value not supported for : retention.ms, flush.ms",
            ),
            (
                [ConfigChange("retention.ms", SET, "1" * (MAX_VALUE_LENGTH + 1))],
                ErrorCode.INVALID_CONFIG,
                "exceeds the maximum value size of 32767 bytes",
            ),
        ],
    )
    def test_one_bad_change_refuses_all(self, changes: list[ConfigChange], code: ErrorCode, message: str) -> None:
        got = refusal(ConfigChange("segment.ms", SET, "5"), *changes)
        assert got[0] is code
        assert message in got[1]

    def test_a_key_of_an_older_version_can_still_be_taken_away(self) -> None:
        image = IMAGE.apply([ConfigRecord("topic", "a", "gone.key", "1")])
        assert "gone.key" not in alter(ConfigChange("gone.key", DELETE), image=image)


class TestReplacing:
    def test_what_is_not_named_is_taken_away(self) -> None:
        assert replace([("segment.ms", "8"), ("flush.ms", "6")]) == {"segment.ms": "8", "flush.ms": "6"}
        assert replace([]) == {}

    @pytest.mark.parametrize(
        ("configs", "code"),
        [
            ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
            ([("retention.ms", "x")], ErrorCode.INVALID_CONFIG),
        ],
    )
    def test_bad_values_are_refused(self, configs: list[tuple[str, str | None]], code: ErrorCode) -> None:
        with pytest.raises(KafkaError) as caught:
            replace(configs)
        assert caught.value.code is code


class TestResources:
    @pytest.mark.parametrize(
        ("resource", "code", "message"),
        [
            (("topic", "b"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'b' does not exist."),
            (("topic", ""), ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
            (("topic", "a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: 'a b' contains"),
            (("broker", "x"), ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
            (("broker", "7"), ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 7"),
            (("group", ""), ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."),
            (("group", "g"), ErrorCode.INVALID_CONFIG, "Unknown group config name: retention.ms"),
            (("user", "u"), ErrorCode.INVALID_REQUEST, "Unknown resource type user"),
        ],
    )
    def test_what_cannot_be_configured(self, resource: tuple[str, str], code: ErrorCode, message: str) -> None:
        got = refusal(ConfigChange("retention.ms", SET, "7"), resource=resource)
        assert got[0] is code
        assert got[1].startswith(message)

    @pytest.mark.parametrize("name", ["", "1", "2"])
    def test_brokers_take_their_dynamic_keys(self, name: str) -> None:
        changed = alter(ConfigChange("message.max.bytes", SET, "999"), resource=("broker", name))
        assert changed == {"message.max.bytes": "999"}
        assert alter(ConfigChange("log.cleanup.policy", APPEND, "compact"), resource=("broker", name)) == {
            "log.cleanup.policy": "delete,compact"
        }

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("num.partitions", "3", "Cannot update these configs dynamically: [num.partitions]"),
            (
                "message.max.bytes",
                "x",
                "Invalid value x for configuration message.max.bytes: Not a number of type INT",
            ),
            ("max.connections.per.ip", "0", "max.connections.per.ip can be set to zero only if"),
        ],
    )
    def test_brokers_refuse_the_rest_with_kafkas_code(self, key: str, value: str, message: str) -> None:
        for name in ("", "1"):
            got = refusal(ConfigChange(key, SET, value), resource=("broker", name))
            assert got[0] is ErrorCode.INVALID_REQUEST
            assert got[1].startswith(message)


@pytest.mark.parametrize("own_first", [True, False])
def test_a_brokers_own_values_and_the_defaults_are_checked_together(own_first: bool) -> None:
    own = (("broker", "1"), ConfigChange("log.cleaner.min.compaction.lag.ms", SET, "100"))
    default = (("broker", ""), ConfigChange("log.cleaner.max.compaction.lag.ms", SET, "50"))
    first, second = (own, default) if own_first else (default, own)
    # The configuration in force is still the one from before the request: only the image knows of the first.
    image = IMAGE.apply(plan_incremental_alter_configs(IMAGE, *first[0], [first[1]], CONFIG))
    with pytest.raises(KafkaError, match="must not be greater than") as caught:
        plan_incremental_alter_configs(image, *second[0], [second[1]], CONFIG)
    assert caught.value.code is ErrorCode.INVALID_REQUEST

"""Hand-packed responses to commits are, byte for byte, what the protocol package writes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import encode_response, error, ms, request_schema, response_schema
from moldau.wire.offset_commit import encode_commit_response

VERSIONS = [
    (key, version)
    for key in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT)
    for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]
TOPICS = [
    ("orders", uuid.UUID(int=7), [(0, 0), (2**31 - 1, 25)]),
    ("ö" * 200, None, [(index, -1) for index in range(300)]),
    ("none", uuid.uuid4(), []),
]


def request_of(key: ApiKey, version: int) -> Any:
    schema, api = request_schema(key, version), APIS[key].name
    return getattr(schema, f"{api}Request")(
        group_id="g",
        member_id="m",
        **({"generation_id_or_member_epoch": 1} if key == ApiKey.OFFSET_COMMIT else {"generation_id": 1}),
        **({} if key == ApiKey.OFFSET_COMMIT else {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}),
        topics=tuple(
            getattr(schema, f"{api}RequestTopic")(
                **{"name": name, **({"topic_id": topic_id} if key == ApiKey.OFFSET_COMMIT else {})},
                partitions=tuple(
                    getattr(schema, f"{api}RequestPartition")(
                        partition_index=index, committed_offset=1, committed_metadata=None
                    )
                    for index, _ in partitions
                ),
            )
            for name, topic_id, partitions in TOPICS
        ),
    )


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_the_bytes_are_those_of_the_protocol_package(key: ApiKey, version: int) -> None:
    schema, api = response_schema(key, version), APIS[key].name
    expected = getattr(schema, f"{api}Response")(
        throttle_time=ms(0),
        topics=tuple(
            getattr(schema, f"{api}ResponseTopic")(
                **{"name": name, **({"topic_id": topic_id} if key == ApiKey.OFFSET_COMMIT else {})},
                partitions=tuple(
                    getattr(schema, f"{api}ResponsePartition")(partition_index=index, error_code=error(code))
                    for index, code in partitions
                ),
            )
            for name, topic_id, partitions in TOPICS
        ),
    )
    codes = (code for _, _, partitions in TOPICS for _, code in partitions)
    assert encode_commit_response(99, request_of(key, version), codes) == encode_response(99, expected)

"""The table of APIs: what is advertised to whom, and what goes with each row."""

from __future__ import annotations

from moldau.broker.handlers.api_table import API_TABLE
from moldau.broker.network.served_api import Audience
from moldau.wire.api_versions import encode_api_versions_response
from moldau.wire.apis import ApiKey
from moldau.wire.messages import decode_response, encode_request, request_schema
from tests.unit.broker.offline import OfflineBroker


async def advertised(broker: OfflineBroker, client_id: str) -> dict[int, tuple[int, int]]:
    request = request_schema(ApiKey.API_VERSIONS, 3).ApiVersionsRequest(
        client_software_name="test", client_software_version="1"
    )
    answer = await broker.send(encode_request(7, client_id, request)[4:])
    _, versions = decode_response(ApiKey.API_VERSIONS, 3, answer[4:])
    return {api.api_key: (api.min_version, api.max_version) for api in versions.api_keys}


async def test_clients_and_brokers_are_told_of_the_apis_that_are_meant_for_them(offline_broker: OfflineBroker) -> None:
    versions: dict[int, tuple[int, int]] = {
        row.key: (row.api.advertised_min, row.api.max_version) for row in API_TABLE.values()
    }
    for_clients = {key for key, row in API_TABLE.items() if row.audience is Audience.CLIENTS}
    assert await advertised(offline_broker, "billing") == {key: versions[key] for key in for_clients}
    assert await advertised(offline_broker, "broker-2") == versions


async def test_a_client_that_is_too_new_gets_the_whole_table_in_version_0(offline_broker: OfflineBroker) -> None:
    frame = ApiKey.API_VERSIONS.to_bytes(2, "big") + (99).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff\0"
    apis = [row.api for row in API_TABLE.values() if row.audience is Audience.CLIENTS]
    told = await offline_broker.send(frame)
    assert len(told) == len(encode_api_versions_response(0, 7, apis))
    _, answer = decode_response(ApiKey.API_VERSIONS, 0, told[4:])
    assert answer.error_code == 35  # UNSUPPORTED_VERSION


def test_only_requests_of_clients_are_forwarded_to_the_controller() -> None:
    assert {row.audience for row in API_TABLE.values() if row.is_forwarded} == {Audience.CLIENTS}

"""The table of APIs agrees with the protocol package, and each version wears the right header."""

from __future__ import annotations

import pytest

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import APIS, Api, ApiKey, is_flexible, request_header_version, response_header_version
from moldau.wire.messages import encode_request, encode_response, ms, request_schema, response_schema

EVERY_VERSION = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
IDS = [f"{api.name}-v{version}" for api, version in EVERY_VERSION]


def test_every_key_has_its_row() -> None:
    assert set(APIS) == set(ApiKey)
    assert all(api.key == key and api.min_version <= api.max_version for key, api in APIS.items())


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION, ids=IDS)
def test_every_version_has_a_schema_of_the_same_name_and_headers(api: Api, version: int) -> None:
    request = getattr(request_schema(api.key, version)._module, f"{api.name}Request")
    response = getattr(response_schema(api.key, version)._module, f"{api.name}Response")
    assert request.__flexible__ == response.__flexible__ == is_flexible(api.key, version)
    assert request.__header_schema__.__version__ == request_header_version(api.key, version)
    assert response.__header_schema__.__version__ == response_header_version(api.key, version)


def test_api_versions_answers_with_the_oldest_header_in_every_version() -> None:
    assert {response_header_version(ApiKey.API_VERSIONS, version) for version in range(5)} == {0}
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2


def test_produce_is_advertised_from_zero_but_served_from_three() -> None:
    produce = APIS[ApiKey.PRODUCE]
    assert produce.advertised_min == 0
    assert [produce.supports(version) for version in (2, 3, 13, 14)] == [False, True, True, False]
    assert all(api.advertised_min == api.min_version for api in APIS.values() if api is not produce)


def test_a_version_that_does_not_exist_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="no version 99"):
        request_schema(ApiKey.METADATA, 99)
    with pytest.raises(ProtocolError, match="unknown API key 999"):
        response_schema(999, 0)


def test_api_versions_frames_differ_only_in_the_request_header() -> None:
    request = request_schema(ApiKey.API_VERSIONS, 3).ApiVersionsRequest(
        client_software_name="x", client_software_version="1"
    )
    assert encode_request(1, None, request)[12:15] == b"\xff\xff\x00"
    response = response_schema(ApiKey.API_VERSIONS, 3).ApiVersionsResponse(
        error_code=ErrorCode.NONE, api_keys=(), throttle_time=ms(0)
    )
    assert encode_response(1, response)[8:10] == b"\x00\x00"

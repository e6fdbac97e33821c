"""The hand-packed ApiVersions against the protocol package."""

from __future__ import annotations

import pytest

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.api_versions import encode_api_versions_response, parse_api_versions_request
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import (
    decode_response,
    encode_request,
    encode_response,
    error,
    ms,
    request_schema,
    response_schema,
)

VERSIONS = range(5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION])
@pytest.mark.parametrize("count", [0, 1, len(APIS)])
def test_the_response_is_the_protocol_packages_byte_for_byte(version: int, code: ErrorCode, count: int) -> None:
    apis = list(APIS.values())[:count]
    schema = response_schema(ApiKey.API_VERSIONS, version)
    expected = schema.ApiVersionsResponse(
        error_code=error(code),
        api_keys=tuple(
            schema.ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
            for api in apis
        ),
        throttle_time=ms(0),
    )
    assert encode_api_versions_response(version, 77, apis, code) == encode_response(77, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_features_are_told_where_clients_understand_them(version: int) -> None:
    features = {"share.version": 1, "transaction.version": 2}
    frame = encode_api_versions_response(version, 77, APIS.values(), features=features)
    _, response = decode_response(ApiKey.API_VERSIONS, version, frame[4:])
    if version >= 3:
        assert response.finalized_features_epoch == 0
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        assert finalized == features
        supported = {
            feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features
        }
        assert supported == {"share.version": (1, 1), "transaction.version": (2, 2)}, "no other level is"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_request_is_read_and_cut_short_is_refused(version: int) -> None:
    schema = request_schema(ApiKey.API_VERSIONS, version)
    request = schema.ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2.15")
    header = 4 + 8 + 2 + (1 if version >= 3 else 0)
    body = memoryview(encode_request(1, "", request))[header:]
    assert parse_api_versions_request(version, body) == (("librdkafka", "2.15") if version >= 3 else ("", ""))
    for end in range(len(body)):
        with pytest.raises(ProtocolError):
            parse_api_versions_request(version, body[:end])

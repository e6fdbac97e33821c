"""What this broker does not have, said so that a client can read it: ACLs, feature levels, quotas, SCRAM, SASL."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.handlers.api_table import API_TABLE, FOR_CLIENTS
from moldau.broker.handlers.api_versions import FEATURES
from moldau.broker.network.served_api import Audience
from moldau.errors import ErrorCode
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import Schema, ms
from tests.unit.broker.offline import OfflineBroker

ANY, ALLOW = 1, 3


def versions(*keys: ApiKey) -> list[tuple[ApiKey, int]]:
    return [(key, version) for key in keys for version in range(APIS[key].min_version, APIS[key].max_version + 1)]


# -- ACLs


def _describe_acls(schema: Schema) -> Any:
    return schema.DescribeAclsRequest(
        resource_type_filter=ANY, resource_name_filter=None, pattern_type_filter=ANY,
        principal_filter=None, host_filter=None, operation=ANY, permission_type=ANY,
    )  # fmt: skip


def _create_acls(schema: Schema) -> Any:
    acl = schema.AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=ALLOW,
    )  # fmt: skip
    return schema.CreateAclsRequest(creations=(acl, acl))


def _delete_acls(schema: Schema) -> Any:
    acls = schema.DeleteAclsFilter(
        resource_type_filter=ANY, resource_name_filter=None, pattern_type_filter=ANY,
        principal_filter=None, host_filter=None, operation=ANY, permission_type=ANY,
    )  # fmt: skip
    return schema.DeleteAclsRequest(filters=(acls, acls))


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.DESCRIBE_ACLS))
async def test_acls_cannot_be_described(offline_broker: OfflineBroker, key: ApiKey, version: int) -> None:
    answer = await offline_broker.ask(key, version, _describe_acls)
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, ())
    assert answer.error_message == "No Authorizer is configured on the broker"


@pytest.mark.parametrize(("key", "version"), versions(ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS))
async def test_acls_cannot_be_changed_and_each_one_is_told(
    offline_broker: OfflineBroker, key: ApiKey, version: int
) -> None:
    answer = await offline_broker.ask(key, version, _create_acls if key is ApiKey.CREATE_ACLS else _delete_acls)
    results = answer.results if key is ApiKey.CREATE_ACLS else answer.filter_results
    told = [(one.error_code, one.error_message) for one in results]
    assert told == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")] * 2


# -- features


async def update_features(broker: OfflineBroker, version: int, *updates: tuple[str, int, int]) -> Any:
    def build(schema: Schema) -> Any:
        how = "upgrade_type" if version else "allow_downgrade"
        items = tuple(
            schema.FeatureUpdateKey(
                feature=name, max_version_level=level, **{how: upgrade_type if version else upgrade_type > 1}
            )
            for name, level, upgrade_type in updates
        )
        options = {"validate_only": False} if version else {}
        return schema.UpdateFeaturesRequest(timeout=ms(1000), feature_updates=items, **options)

    return await broker.ask(ApiKey.UPDATE_FEATURES, version, build)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_features_stay_as_they_are(offline_broker: OfflineBroker, version: int) -> None:
    same = [(name, level, 1) for name, level in FEATURES.items()]
    answer = await update_features(offline_broker, version, *same)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    if version < 2:
        assert [(one.feature, one.error_code) for one in answer.results] == [(name, 0) for name in FEATURES]
    refused = [
        (("no.such.version", 1, 1), "does not support the feature"),
        (("metadata.version", 27, 1), "does not support the feature"),
        (("transaction.version", 3, 1), "supports version 2 only"),
        (("transaction.version", 1, 2), "supports version 2 only"),
        (("share.version", 0, 3), "supports version 1 only"),
        (("group.version", -1, 1), "cannot be less than 0"),
        *([(("group.version", 1, 9), "upgrade type 9")] if version else []),
    ]
    for update, why in refused:
        answer = await update_features(offline_broker, version, *same, update)
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION, update
        assert why in answer.error_message
        assert update[0] in answer.error_message
        assert not getattr(answer, "results", ())


# -- what Kafka has and this broker does not


def _refused_request(key: ApiKey, schema: Schema) -> Any:
    match key:
        case ApiKey.SASL_HANDSHAKE:
            return schema.SaslHandshakeRequest(mechanism="PLAIN")
        case ApiKey.SASL_AUTHENTICATE:
            return schema.SaslAuthenticateRequest(auth_bytes=b"\0a\0b")
        case ApiKey.ALTER_REPLICA_LOG_DIRS:
            topic = schema.AlterReplicaLogDirTopic(name="t", partitions=(0, 1))
            return schema.AlterReplicaLogDirsRequest(dirs=(schema.AlterReplicaLogDir(path="/d", topics=(topic,)),))
        case ApiKey.DESCRIBE_CLIENT_QUOTAS:
            return schema.DescribeClientQuotasRequest(components=(), strict=False)
        case ApiKey.ALTER_CLIENT_QUOTAS:
            entity = schema.EntityData(entity_type="user", entity_name=None)
            entry = schema.EntryData(entity=(entity,), ops=())
            return schema.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        case ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS:
            return schema.DescribeUserScramCredentialsRequest(users=None)
        case _:
            deletion = schema.ScramCredentialDeletion(name="a", mechanism=1)
            return schema.AlterUserScramCredentialsRequest(deletions=(deletion, deletion), upsertions=())


def _codes(answer: Any) -> list[int]:
    """Every error code of an answer, wherever it stands."""
    if isinstance(answer, tuple):
        return [code for one in answer for code in _codes(one)]
    own = [answer.error_code] if hasattr(answer, "error_code") else []
    inside = [getattr(answer, name, ()) or () for name in ("results", "entries", "partitions")]
    return own + [code for part in inside for code in _codes(part)]


@pytest.mark.parametrize(
    ("key", "version"), versions(*(row.key for row in API_TABLE.values() if row.audience is Audience.NOBODY))
)
async def test_an_api_that_is_not_there_is_refused_in_its_own_answer(
    offline_broker: OfflineBroker, key: ApiKey, version: int
) -> None:
    assert API_TABLE[key].api not in FOR_CLIENTS, "clients that look are told that it is not there"
    answer = await offline_broker.ask(key, version, lambda schema: _refused_request(key, schema))
    sasl = key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    assert set(_codes(answer)) == {ErrorCode.ILLEGAL_SASL_STATE if sasl else ErrorCode.UNSUPPORTED_VERSION}

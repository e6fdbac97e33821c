"""The one table of the APIs that this broker serves: dispatch, limits, forwarding and ApiVersions all come from it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from moldau.broker.handlers import unsupported
from moldau.broker.handlers.admin import (
    acls,
    broker_requests,
    configs,
    features,
    log_dirs,
    metadata,
    reassignments,
    topics,
)
from moldau.broker.handlers.api_versions import answer_api_versions
from moldau.broker.handlers.groups import classic_groups, consumer_groups, find_coordinator, group_admin, offset_commits
from moldau.broker.handlers.queues import share_coordinator, share_fetch, share_groups
from moldau.broker.handlers.records import fetch, list_offsets, produce
from moldau.broker.handlers.transactions import init_producer_id, transaction_admin, transactions
from moldau.broker.needs import Broker
from moldau.broker.network.request import RequestContext
from moldau.broker.network.served_api import Audience, ServedApi
from moldau.wire.apis import ApiKey

FETCH_BYTES_MAX = 1024 * 1024
"""About 30,000 partitions."""
REFUSED_BYTES_MAX = 128 * 1024
"""For requests that are always answered with an error for each of their items."""


def _handle_api_versions(broker: Broker, context: RequestContext, body: memoryview) -> bytes:
    return answer_api_versions(context, body, FOR_BROKERS if context.is_from_broker else FOR_CLIENTS)


def _refused(key: ApiKey, handler: Callable[[Broker, RequestContext, Any], Any]) -> ServedApi[Broker]:
    """An API that Kafka has and this broker does not."""
    return ServedApi(key, handler, bytes_max=REFUSED_BYTES_MAX, audience=Audience.NOBODY)


API_TABLE: dict[int, ServedApi[Broker]] = {
    row.key: row
    for row in (
        # Entries are limited where a step of a coordinator or of the controller handles all of them in one go.
        # Produce has no limit in bytes of its own: the connection holds it to `socket.request.max.bytes`.
        ServedApi(ApiKey.PRODUCE, produce.handle_produce, is_raw=True, bytes_max=sys.maxsize),
        ServedApi(ApiKey.FETCH, fetch.handle_fetch, is_raw=True, bytes_max=FETCH_BYTES_MAX),
        ServedApi(ApiKey.LIST_OFFSETS, list_offsets.handle_list_offsets),
        ServedApi(ApiKey.METADATA, metadata.handle_metadata),
        ServedApi(ApiKey.OFFSET_COMMIT, offset_commits.handle_offset_commit),
        ServedApi(ApiKey.OFFSET_FETCH, offset_commits.handle_offset_fetch),
        ServedApi(ApiKey.FIND_COORDINATOR, find_coordinator.handle_find_coordinator),
        ServedApi(ApiKey.JOIN_GROUP, classic_groups.handle_join_group, entries_max=1_000),
        ServedApi(ApiKey.HEARTBEAT, classic_groups.handle_heartbeat),
        ServedApi(ApiKey.LEAVE_GROUP, classic_groups.handle_leave_group, entries_max=10_000),
        ServedApi(ApiKey.SYNC_GROUP, classic_groups.handle_sync_group, entries_max=10_000),
        ServedApi(ApiKey.DESCRIBE_GROUPS, group_admin.handle_describe_groups),
        ServedApi(ApiKey.LIST_GROUPS, group_admin.handle_list_groups),
        _refused(ApiKey.SASL_HANDSHAKE, unsupported.handle_sasl_handshake),
        ServedApi(ApiKey.API_VERSIONS, _handle_api_versions, is_raw=True, bytes_max=FETCH_BYTES_MAX),
        ServedApi(ApiKey.CREATE_TOPICS, topics.handle_create_topics, is_forwarded=True),
        ServedApi(ApiKey.DELETE_TOPICS, topics.handle_delete_topics, entries_max=20_000, is_forwarded=True),
        ServedApi(ApiKey.DELETE_RECORDS, topics.handle_delete_records),
        ServedApi(ApiKey.INIT_PRODUCER_ID, init_producer_id.handle_init_producer_id),
        ServedApi(ApiKey.OFFSET_FOR_LEADER_EPOCH, list_offsets.handle_offset_for_leader_epoch),
        ServedApi(ApiKey.ADD_PARTITIONS_TO_TXN, transactions.handle_add_partitions_to_txn),
        ServedApi(ApiKey.ADD_OFFSETS_TO_TXN, transactions.handle_add_offsets_to_txn),
        ServedApi(ApiKey.END_TXN, transactions.handle_end_txn),
        ServedApi(ApiKey.WRITE_TXN_MARKERS, transactions.handle_write_txn_markers),
        ServedApi(ApiKey.TXN_OFFSET_COMMIT, offset_commits.handle_txn_offset_commit),
        ServedApi(ApiKey.DESCRIBE_ACLS, acls.handle_describe_acls, bytes_max=REFUSED_BYTES_MAX),
        ServedApi(ApiKey.CREATE_ACLS, acls.handle_create_acls, bytes_max=REFUSED_BYTES_MAX),
        ServedApi(ApiKey.DELETE_ACLS, acls.handle_delete_acls, bytes_max=REFUSED_BYTES_MAX),
        ServedApi(ApiKey.DESCRIBE_CONFIGS, configs.handle_describe_configs),
        ServedApi(ApiKey.ALTER_CONFIGS, configs.handle_alter_configs, entries_max=20_000, is_forwarded=True),
        _refused(ApiKey.ALTER_REPLICA_LOG_DIRS, unsupported.handle_alter_replica_log_dirs),
        ServedApi(ApiKey.DESCRIBE_LOG_DIRS, log_dirs.handle_describe_log_dirs),
        _refused(ApiKey.SASL_AUTHENTICATE, unsupported.handle_sasl_authenticate),
        ServedApi(ApiKey.CREATE_PARTITIONS, topics.handle_create_partitions, is_forwarded=True),
        ServedApi(ApiKey.DELETE_GROUPS, group_admin.handle_delete_groups),
        ServedApi(ApiKey.ELECT_LEADERS, reassignments.handle_elect_leaders, entries_max=20_000, is_forwarded=True),
        ServedApi(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            configs.handle_incremental_alter_configs,
            entries_max=20_000,
            is_forwarded=True,
        ),
        ServedApi(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, reassignments.handle_alter_partition_reassignments, is_forwarded=True
        ),
        ServedApi(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, reassignments.handle_list_partition_reassignments, is_forwarded=True
        ),
        ServedApi(ApiKey.OFFSET_DELETE, offset_commits.handle_offset_delete),
        _refused(ApiKey.DESCRIBE_CLIENT_QUOTAS, unsupported.handle_describe_client_quotas),
        _refused(ApiKey.ALTER_CLIENT_QUOTAS, unsupported.handle_alter_client_quotas),
        _refused(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, unsupported.handle_describe_user_scram_credentials),
        _refused(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, unsupported.handle_alter_user_scram_credentials),
        ServedApi(ApiKey.VOTE, broker_requests.handle_vote, audience=Audience.BROKERS),
        ServedApi(ApiKey.DESCRIBE_QUORUM, broker_requests.handle_describe_quorum, is_forwarded=True),
        ServedApi(
            ApiKey.ALTER_PARTITION,
            broker_requests.handle_alter_partition,
            entries_max=10_000,
            audience=Audience.BROKERS,
        ),
        ServedApi(ApiKey.UPDATE_FEATURES, features.handle_update_features, bytes_max=REFUSED_BYTES_MAX),
        ServedApi(ApiKey.DESCRIBE_CLUSTER, metadata.handle_describe_cluster),
        ServedApi(ApiKey.DESCRIBE_PRODUCERS, transaction_admin.handle_describe_producers),
        ServedApi(ApiKey.BROKER_REGISTRATION, broker_requests.handle_broker_registration, audience=Audience.BROKERS),
        ServedApi(ApiKey.BROKER_HEARTBEAT, broker_requests.handle_broker_heartbeat, audience=Audience.BROKERS),
        ServedApi(ApiKey.UNREGISTER_BROKER, broker_requests.handle_unregister_broker, is_forwarded=True),
        ServedApi(ApiKey.DESCRIBE_TRANSACTIONS, transaction_admin.handle_describe_transactions),
        ServedApi(ApiKey.LIST_TRANSACTIONS, transaction_admin.handle_list_transactions),
        ServedApi(
            ApiKey.ALLOCATE_PRODUCER_IDS, broker_requests.handle_allocate_producer_ids, audience=Audience.BROKERS
        ),
        ServedApi(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_groups.handle_consumer_group_heartbeat, entries_max=10_000),
        ServedApi(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_groups.handle_consumer_group_describe),
        ServedApi(
            ApiKey.ASSIGN_REPLICAS_TO_DIRS,
            broker_requests.handle_assign_replicas_to_dirs,
            entries_max=10_000,
            audience=Audience.BROKERS,
        ),
        ServedApi(ApiKey.LIST_CONFIG_RESOURCES, configs.handle_list_config_resources),
        ServedApi(ApiKey.DESCRIBE_TOPIC_PARTITIONS, metadata.handle_describe_topic_partitions),
        ServedApi(ApiKey.SHARE_GROUP_HEARTBEAT, share_groups.handle_share_group_heartbeat, entries_max=10_000),
        ServedApi(ApiKey.SHARE_GROUP_DESCRIBE, share_groups.handle_share_group_describe),
        ServedApi(ApiKey.SHARE_FETCH, share_fetch.handle_share_fetch, bytes_max=FETCH_BYTES_MAX),
        ServedApi(ApiKey.SHARE_ACKNOWLEDGE, share_fetch.handle_share_acknowledge),
        ServedApi(ApiKey.INITIALIZE_SHARE_GROUP_STATE, share_coordinator.handle_share_group_state, entries_max=10_000),
        ServedApi(ApiKey.READ_SHARE_GROUP_STATE, share_coordinator.handle_share_group_state, entries_max=10_000),
        ServedApi(ApiKey.WRITE_SHARE_GROUP_STATE, share_coordinator.handle_share_group_state, entries_max=5_000),
        ServedApi(ApiKey.DELETE_SHARE_GROUP_STATE, share_coordinator.handle_share_group_state, entries_max=10_000),
        ServedApi(
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, share_coordinator.handle_share_group_state, entries_max=10_000
        ),
        ServedApi(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, share_groups.handle_describe_share_group_offsets),
        ServedApi(ApiKey.ALTER_SHARE_GROUP_OFFSETS, share_groups.handle_alter_share_group_offsets),
        ServedApi(
            ApiKey.DELETE_SHARE_GROUP_OFFSETS, share_groups.handle_delete_share_group_offsets, entries_max=20_000
        ),
    )
}
FOR_BROKERS = [row.api for row in API_TABLE.values()]
FOR_CLIENTS = [row.api for row in API_TABLE.values() if row.audience is Audience.CLIENTS]
"""What ApiVersions advertises."""

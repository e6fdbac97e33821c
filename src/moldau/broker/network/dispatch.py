"""The one table of what this broker serves, and the way of a frame to its handler.

Two kinds of handlers: the hot ones (Produce, Fetch) get the frame's bytes and make the answer's bytes; all others get
a message decoded by the protocol package and return one, or its bytes where it can be large. A handler that has to
wait returns an awaitable, one whose work grows with the request is a generator (`turns`). Long messages are decoded and
encoded in a thread.

What goes wrong stays small: a malformed frame or an unexpected exception closes the one connection it came from.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from moldau.broker.cluster.forwarding import forward, is_from_broker, should_forward
from moldau.broker.handlers import api_versions, unsupported
from moldau.broker.handlers.admin import acls, configs, features, log_dirs, metadata, reassignments, topics
from moldau.broker.handlers.admin import broker_requests as controller
from moldau.broker.handlers.groups import classic_groups as groups
from moldau.broker.handlers.groups import consumer_groups, group_admin, offset_commits
from moldau.broker.handlers.groups import find_coordinator as coordinators
from moldau.broker.handlers.queues import share_fetch, share_groups, share_state
from moldau.broker.handlers.records import list_offsets as offsets
from moldau.broker.handlers.records.fetch import handle_fetch
from moldau.broker.handlers.records.produce import handle_produce
from moldau.broker.handlers.transactions import init_producer_id as producer_ids
from moldau.broker.handlers.transactions import transaction_admin, transactions
from moldau.broker.monitoring.metrics import Histogram
from moldau.broker.network.client_connection import Answer, Buffers, ClientConnection, Pipelined
from moldau.broker.network.old_clients import OldClients
from moldau.broker.network.request import RequestContext
from moldau.broker.served import REFUSED, SERVED
from moldau.errors import ProtocolError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import decode_request, encode_response, has_more_entries, parse_request_header

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

DECODE_INLINE_MAX_BYTES = 4 * 1024
"""A longer message can hold enough small entries to keep the loop for many milliseconds: a thread decodes it."""
ENCODE_INLINE_MAX = 200
"""Entries in an answer that are encoded on the loop: two milliseconds."""
FETCH_MAX_BYTES = 1024 * 1024
"""Some 30,000 partitions."""
MESSAGE_MAX_BYTES = 8 * 1024 * 1024
"""Only Produce carries data. A longer message of any other kind is an attack or a mistake."""
REFUSED_MAX_BYTES = 128 * 1024
"""Of a message that gets an error for each of its items, whatever they are: more would only take time."""
_MAX_BYTES: dict[int, int] = {
    **dict.fromkeys(
        (*REFUSED, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.UPDATE_FEATURES),
        REFUSED_MAX_BYTES,
    ),
    ApiKey.PRODUCE: sys.maxsize,  # the connection holds it to `socket.request.max.bytes`
    ApiKey.FETCH: FETCH_MAX_BYTES,
    ApiKey.SHARE_FETCH: FETCH_MAX_BYTES,
    ApiKey.API_VERSIONS: FETCH_MAX_BYTES,
}


ENTRIES_MAX = 50_000
"""Of all arrays of a request together. An entry can be one byte, and becomes an object of a hundred: 8 MB of them would
be many seconds of work and a gigabyte of memory. To go through so many takes 10 ms where it is done in one go."""
_ENTRIES_MAX: dict[int, int] = {
    # Some of what these ask for, a step of a coordinator or of the controller perhaps, is done in one go.
    ApiKey.JOIN_GROUP: 1_000,
    ApiKey.SYNC_GROUP: 10_000,
    ApiKey.LEAVE_GROUP: 10_000,
    ApiKey.DELETE_TOPICS: 20_000,
    ApiKey.ALTER_CONFIGS: 20_000,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 20_000,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 10_000,
    ApiKey.SHARE_GROUP_HEARTBEAT: 10_000,
    ApiKey.ALTER_PARTITION: 10_000,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: 10_000,
    ApiKey.ELECT_LEADERS: 20_000,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: 20_000,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: 10_000,
    ApiKey.READ_SHARE_GROUP_STATE: 10_000,
    ApiKey.WRITE_SHARE_GROUP_STATE: 5_000,
    ApiKey.DELETE_SHARE_GROUP_STATE: 10_000,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 10_000,
}


def entries_max(api_key: int) -> int:
    """The most entries that all arrays of a request may have together."""
    return _ENTRIES_MAX.get(api_key, ENTRIES_MAX)


def bytes_max(api_key: int) -> int:
    """The longest request of an API that is looked at."""
    return _MAX_BYTES.get(api_key, MESSAGE_MAX_BYTES)


_AT_ONCE = frozenset({bytes, list, type(None)})
"""Types of answers that are there when the handler returns."""


RawHandler: TypeAlias = "Callable[[BrokerNode, RequestContext, memoryview], Answer]"
MessageHandler: TypeAlias = "Callable[[BrokerNode, RequestContext, Any], Any]"

RAW_HANDLERS: dict[int, RawHandler] = {
    ApiKey.PRODUCE: handle_produce,
    ApiKey.FETCH: handle_fetch,
    ApiKey.API_VERSIONS: api_versions.handle_api_versions,
}

HANDLERS: dict[int, MessageHandler] = {
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.OFFSET_COMMIT: offset_commits.handle_offset_commit,
    ApiKey.OFFSET_FETCH: offset_commits.handle_offset_fetch,
    ApiKey.FIND_COORDINATOR: coordinators.handle_find_coordinator,
    ApiKey.JOIN_GROUP: groups.handle_join_group,
    ApiKey.HEARTBEAT: groups.handle_heartbeat,
    ApiKey.LEAVE_GROUP: groups.handle_leave_group,
    ApiKey.SYNC_GROUP: groups.handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: group_admin.handle_describe_groups,
    ApiKey.LIST_GROUPS: group_admin.handle_list_groups,
    ApiKey.SASL_HANDSHAKE: unsupported.handle_sasl_handshake,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.DELETE_RECORDS: topics.handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: producer_ids.handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.handle_add_offsets_to_txn,
    ApiKey.END_TXN: transactions.handle_end_txn,
    ApiKey.WRITE_TXN_MARKERS: transactions.handle_write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: offset_commits.handle_txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: acls.handle_describe_acls,
    ApiKey.CREATE_ACLS: acls.handle_create_acls,
    ApiKey.DELETE_ACLS: acls.handle_delete_acls,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    ApiKey.ALTER_CONFIGS: configs.handle_alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: unsupported.handle_alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.handle_describe_log_dirs,
    ApiKey.SASL_AUTHENTICATE: unsupported.handle_sasl_authenticate,
    ApiKey.CREATE_PARTITIONS: topics.handle_create_partitions,
    ApiKey.DELETE_GROUPS: group_admin.handle_delete_groups,
    ApiKey.ELECT_LEADERS: reassignments.handle_elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.handle_incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.handle_list_partition_reassignments,
    ApiKey.OFFSET_DELETE: offset_commits.handle_offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: unsupported.handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: unsupported.handle_alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: unsupported.handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: unsupported.handle_alter_user_scram_credentials,
    ApiKey.VOTE: controller.handle_vote,
    ApiKey.DESCRIBE_QUORUM: controller.handle_describe_quorum,
    ApiKey.ALTER_PARTITION: controller.handle_alter_partition,
    ApiKey.UPDATE_FEATURES: features.handle_update_features,
    ApiKey.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: transaction_admin.handle_describe_producers,
    ApiKey.BROKER_REGISTRATION: controller.handle_broker_registration,
    ApiKey.BROKER_HEARTBEAT: controller.handle_broker_heartbeat,
    ApiKey.UNREGISTER_BROKER: controller.handle_unregister_broker,
    ApiKey.DESCRIBE_TRANSACTIONS: transaction_admin.handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transaction_admin.handle_list_transactions,
    ApiKey.ALLOCATE_PRODUCER_IDS: controller.handle_allocate_producer_ids,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.handle_consumer_group_describe,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: controller.handle_assign_replicas_to_dirs,
    ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.handle_describe_topic_partitions,
    ApiKey.SHARE_GROUP_HEARTBEAT: share_groups.handle_share_group_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: share_groups.handle_share_group_describe,
    ApiKey.SHARE_FETCH: share_fetch.handle_share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: share_fetch.handle_share_acknowledge,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: share_state.handle_share_group_state,
    ApiKey.READ_SHARE_GROUP_STATE: share_state.handle_share_group_state,
    ApiKey.WRITE_SHARE_GROUP_STATE: share_state.handle_share_group_state,
    ApiKey.DELETE_SHARE_GROUP_STATE: share_state.handle_share_group_state,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: share_state.handle_share_group_state,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: share_groups.handle_describe_share_group_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_groups.handle_alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_groups.handle_delete_share_group_offsets,
}


class Dispatcher:
    """Connections on one side, handlers on the other."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._old_clients = OldClients()

    def connected(self, connection: ClientConnection) -> bool:
        return self._node.connections.admit(connection)

    def disconnected(self, connection: ClientConnection) -> None:
        self._node.connections.remove(connection)
        self._node.share_partitions.disconnected(connection)
        self._node.replication.sessions.disconnected(connection)
        self._node.disconnected(connection)

    def handle(self, connection: ClientConnection, frame: memoryview) -> Answer:
        began_s = perf_counter()
        header = parse_request_header(frame)
        key = header.api_key
        version = header.api_version
        api = SERVED.get(key)
        context = RequestContext(key, version, header.correlation_id, header.client_id, connection)
        if api is None or not api.min_version <= version <= api.max_version:
            if key == ApiKey.API_VERSIONS:
                return api_versions.unsupported_version(context)
            raise self._old_clients.refuse(context)
        if len(frame) > bytes_max(key):
            raise ProtocolError(f"request of {len(frame)} bytes for {api.name}")
        if not self._node.is_serving.is_set() and key != ApiKey.API_VERSIONS and not is_from_broker(header.client_id):
            return self._handle_later(connection, bytearray(frame))
        metrics = self._node.metrics
        metrics.requests[key] += 1
        metrics.bytes_in += len(frame)
        answer = self._answer(context, frame[header.body_offset :])
        if type(answer) in _AT_ONCE:
            metrics.latencies[key].observe(perf_counter() - began_s)
            return answer
        return self._measured(answer, metrics.latencies[key], began_s)

    @staticmethod
    def _measured(answer: Any, latency: Histogram, began_s: float) -> Answer:
        """For answers that come later."""

        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                latency.observe(perf_counter() - began_s)

        async def measured() -> Buffers | Pipelined | None:
            result: Buffers | Pipelined | None = await answer
            if isinstance(result, Pipelined):
                result.future.add_done_callback(done)
            else:
                latency.observe(perf_counter() - began_s)
            return result

        future = answer.future if isinstance(answer, Pipelined) else answer
        if not isinstance(future, asyncio.Future):
            return measured()
        future.add_done_callback(done)
        return cast(Answer, answer)

    def _answer(self, context: RequestContext, view: memoryview) -> Answer:
        key, version = context.key, context.version
        try:
            raw = RAW_HANDLERS.get(key)
            if raw is not None:
                return raw(self._node, context, view)
            body = bytes(view)
            if should_forward(self._node, context):
                return self._forward(context, body)
            if len(body) > DECODE_INLINE_MAX_BYTES:
                return self._encode_later(context, self._handle_large(context, body))
            response = self._respond(context, decode_request(key, version, body, entries_max(key)))
            if inspect.isawaitable(response):
                return self._encode_later(context, response)
            return _framed(context, response)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._unexpected(context, error) from error

    async def _handle_later(self, connection: ClientConnection, frame: bytearray) -> Buffers | Pipelined | None:
        """A client that comes while the broker joins its cluster waits for it."""
        await self._node.is_serving.wait()
        answer = self.handle(connection, memoryview(frame))
        return await answer if inspect.isawaitable(answer) else answer

    async def _forward(self, context: RequestContext, body: bytes) -> Buffers:
        # What is malformed ends here. The controller would close the connection, and others' requests are on it, too.
        await self._node.threads.compute(decode_request, context.key, context.version, body, entries_max(context.key))
        answer = await forward(self._node, context, body)
        return await self._encode_later(context, self._handle_large(context, body)) if answer is None else answer

    def _respond(self, context: RequestContext, message: Any) -> Any:
        """The response, or an awaitable of it."""
        response = HANDLERS[context.key](self._node, context, message)
        return self._node.turns.run(response) if isinstance(response, GeneratorType) else response

    async def _handle_large(self, context: RequestContext, body: bytes) -> Any:
        most = entries_max(context.key)
        message = await self._node.threads.compute(decode_request, context.key, context.version, body, most)
        response = self._respond(context, message)
        return await response if inspect.isawaitable(response) else response

    async def _encode_later(self, context: RequestContext, waiting: Awaitable[Any]) -> Buffers:
        try:
            response = await waiting
            if has_more_entries(response, ENCODE_INLINE_MAX):
                return await self._node.threads.compute(_framed, context, response)
            return _framed(context, response)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._unexpected(context, error) from error

    def _unexpected(self, context: RequestContext, error: Exception) -> ProtocolError:
        name = SERVED[context.key].name
        self._node.metrics.unexpected_errors += 1
        log.error("%s v%d failed", name, context.version, exc_info=error, extra={"client": context.client_id})
        return ProtocolError(f"{name} v{context.version} failed inside the broker: {error!r}")


def _framed(context: RequestContext, response: Any) -> Buffers:
    """A handler whose answers can be large has packed them itself."""
    return response if isinstance(response, bytes | list) else encode_response(context.correlation_id, response)

"""APIs of Kafka's brokers that this broker does not support: clients get an error response.

ApiVersions does not list them, so most clients do not use them. Clients that send them anyway get an error that they
can read, and keep their connection. Any other unknown API or version closes the connection, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.off_loop import answer_in_thread
from moldau.errors import ErrorCode
from moldau.wire.messages import error, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasThreads, Protocol):
    """What these handlers use."""


_QUOTAS = "this broker has no client quotas"
_SCRAM = "this broker has no SCRAM credentials"
_SASL = "this listener does not use SASL; set security.protocol to PLAINTEXT"


def handle_sasl_handshake(broker: Broker, context: RequestContext, request: Any) -> Any:
    return context.schema.SaslHandshakeResponse(error_code=error(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=())


def handle_sasl_authenticate(broker: Broker, context: RequestContext, request: Any) -> Any:
    return context.schema.SaslAuthenticateResponse(
        error_code=error(ErrorCode.ILLEGAL_SASL_STATE), error_message=_SASL, auth_bytes=b""
    )


def handle_alter_replica_log_dirs(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema, code = context.schema, error(ErrorCode.UNSUPPORTED_VERSION)

    def build() -> Any:
        results = tuple(
            schema.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=tuple(
                    schema.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index in topic.partitions
                ),
            )
            for directory in request.dirs
            for topic in directory.topics
        )
        return schema.AlterReplicaLogDirsResponse(throttle_time=ms(0), results=results)

    return answer_in_thread(broker, context, build)


def handle_describe_client_quotas(broker: Broker, context: RequestContext, request: Any) -> Any:
    code = error(ErrorCode.UNSUPPORTED_VERSION)
    return context.schema.DescribeClientQuotasResponse(
        throttle_time=ms(0), error_code=code, error_message=_QUOTAS, entries=None
    )


def handle_alter_client_quotas(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema, code = context.schema, error(ErrorCode.UNSUPPORTED_VERSION)

    def build() -> Any:
        entries = tuple(
            schema.EntryData(
                error_code=code,
                error_message=_QUOTAS,
                entity=tuple(
                    schema.EntityData(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity
                ),
            )
            for entry in request.entries
        )
        return schema.AlterClientQuotasResponse(throttle_time=ms(0), entries=entries)

    return answer_in_thread(broker, context, build)


def handle_describe_user_scram_credentials(broker: Broker, context: RequestContext, request: Any) -> Any:
    code = error(ErrorCode.UNSUPPORTED_VERSION)
    return context.schema.DescribeUserScramCredentialsResponse(
        throttle_time=ms(0), error_code=code, error_message=_SCRAM, results=()
    )


def handle_alter_user_scram_credentials(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema, code = context.schema, error(ErrorCode.UNSUPPORTED_VERSION)

    def build() -> Any:
        users = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
        results = tuple(
            schema.AlterUserScramCredentialsResult(user=user, error_code=code, error_message=_SCRAM) for user in users
        )
        return schema.AlterUserScramCredentialsResponse(throttle_time=ms(0), results=results)

    return answer_in_thread(broker, context, build)

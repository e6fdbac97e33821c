"""DescribeAcls, CreateAcls, DeleteAcls (keys 29, 30, 31): there is no authorizer, and each answer says so."""

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


# Kafka's messages: tools and their logs are searched for them.
_DESCRIBE_MESSAGE = "No Authorizer is configured on the broker"
_CHANGE_MESSAGE = "No Authorizer is configured."


def handle_describe_acls(broker: Broker, context: RequestContext, request: Any) -> Any:
    return context.schema.DescribeAclsResponse(
        throttle_time=ms(0),
        error_code=error(ErrorCode.SECURITY_DISABLED),
        error_message=_DESCRIBE_MESSAGE,
        resources=(),
    )


def handle_create_acls(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema, count = context.schema, len(request.creations)
    result = schema.AclCreationResult(error_code=error(ErrorCode.SECURITY_DISABLED), error_message=_CHANGE_MESSAGE)
    response = schema.CreateAclsResponse(throttle_time=ms(0), results=(result,) * count)
    return answer_in_thread(broker, context, lambda: response)


def handle_delete_acls(broker: Broker, context: RequestContext, request: Any) -> Any:
    schema, count = context.schema, len(request.filters)
    result = schema.DeleteAclsFilterResult(
        error_code=error(ErrorCode.SECURITY_DISABLED), error_message=_CHANGE_MESSAGE, matching_acls=()
    )
    response = schema.DeleteAclsResponse(throttle_time=ms(0), filter_results=(result,) * count)
    return answer_in_thread(broker, context, lambda: response)

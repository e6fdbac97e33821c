"""DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44) and ListConfigResources (74).

`moldau.metadata.configs` decides what may be set, `moldau.config.describe` has the description of each key.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker import needs
from moldau.broker.handlers.admin.metadata_changes import Planner, change_each, error_of, repeated
from moldau.broker.handlers.admin.off_loop import answer_in_thread
from moldau.broker.turns import Work
from moldau.config.describe import describe_broker, describe_broker_defaults, describe_group, describe_topic
from moldau.config.entries import ConfigEntry
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.configs import ConfigChange, plan_alter_configs, plan_incremental_alter_configs
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.topics import validate_topic_name
from moldau.wire.constants import ResourceType
from moldau.wire.messages import Schema, error, has_more_entries, ms

if TYPE_CHECKING:
    from moldau.broker.network.request import RequestContext


class Broker(needs.HasTurns, needs.HasThreads, needs.HasLocalBroker, needs.HasMetadata, needs.HasController, Protocol):
    """What these handlers use."""


_ALTERABLE = {ResourceType.TOPIC: "topic", ResourceType.BROKER: "broker", ResourceType.GROUP: "group"}

DESCRIBE_INLINE_MAX = 4
"""Resources described on the event loop: each takes nearly a millisecond."""

NAMED_INLINE_MAX = 200
"""Resources and keys, together, in such a request."""

Resource = tuple[int, str]


# -- DescribeConfigs


def handle_describe_configs(broker: Broker, context: RequestContext, request: Any) -> Any:
    if len(request.resources) <= DESCRIBE_INLINE_MAX and not has_more_entries(request, NAMED_INLINE_MAX):
        return _describe_all(broker, context.schema, request)
    return answer_in_thread(broker, context, partial(_describe_all, broker, context.schema, request))


def _describe_all(broker: Broker, schema: Schema, request: Any) -> Any:
    with_doc = getattr(request, "include_documentation", False)
    results = []
    for resource in request.resources:
        entries: list[ConfigEntry] = []
        refusal = None
        try:
            entries = _describe(broker, resource.resource_type, resource.resource_name)
        except KafkaError as failure:
            refusal = failure
        keys = frozenset(resource.configuration_keys or ())
        results.append(
            schema.DescribeConfigsResult(
                error_code=error_of(refusal),
                error_message=refusal.message if refusal else "",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(
                    _described(schema, entry, request.include_synonyms, with_doc)
                    for entry in entries
                    if not keys or entry.name in keys
                ),
            )
        )
    return schema.DescribeConfigsResponse(throttle_time=ms(0), results=tuple(results))


def _describe(broker: Broker, resource_type: int, name: str) -> list[ConfigEntry]:
    if resource_type == ResourceType.TOPIC:
        validate_topic_name(name)
        if name not in broker.metadata.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return describe_topic(broker.metadata.image.topic_config(name), broker.local.config)
    if resource_type == ResourceType.BROKER:
        if not name:
            return describe_broker_defaults(broker.local.config)
        _check_broker_id(broker, name)
        return describe_broker(broker.local.config)
    if resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(broker.metadata.image.group_config(name), broker.local.config)
    raise _unsupported(resource_type)


def _check_broker_id(broker: Broker, name: str) -> None:
    try:
        broker_id = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if broker_id != broker.local.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.local.node_id} or empty string, but received {name}",
        )


def _described(schema: Schema, entry: ConfigEntry, with_synonyms: bool, with_doc: bool) -> Any:
    return schema.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(
            schema.DescribeConfigsSynonym(name=each.name, value=each.value, source=int(each.source))
            for each in entry.synonyms
        )
        if with_synonyms
        else (),
        config_type=int(entry.type),
        documentation=entry.doc if with_doc else None,
    )


# -- AlterConfigs, IncrementalAlterConfigs


async def handle_alter_configs(broker: Broker, context: RequestContext, request: Any) -> Any:
    refusals = await _alter(broker, request, _plan_replacement)
    schema = context.schema
    responses = [_altered(schema, *each) async for each in broker.turns.each(refusals)]
    return schema.AlterConfigsResponse(throttle_time=ms(0), responses=tuple(responses))


async def handle_incremental_alter_configs(broker: Broker, context: RequestContext, request: Any) -> Any:
    refusals = await _alter(broker, request, _plan_changes)
    schema = context.schema
    responses = [_altered(schema, *each) async for each in broker.turns.each(refusals)]
    return schema.IncrementalAlterConfigsResponse(throttle_time=ms(0), responses=tuple(responses))


def _plan_replacement(image: MetadataImage, *, kind: str, resource: Any, broker: Broker) -> list[Record]:
    configs = [(config.name, config.value) for config in resource.configs]
    return plan_alter_configs(image, kind, resource.resource_name, configs, broker.local.config)


def _plan_changes(image: MetadataImage, *, kind: str, resource: Any, broker: Broker) -> list[Record]:
    changes = [ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs]
    return plan_incremental_alter_configs(image, kind, resource.resource_name, changes, broker.local.config)


async def _alter(broker: Broker, request: Any, plan: Any) -> list[tuple[Resource, KafkaError | None]]:
    """Every resource in the order of the request, and why it was left as it was."""
    asked: list[Resource] = [(each.resource_type, each.resource_name) for each in request.resources]
    duplicates = repeated(asked)
    refusals: dict[Resource, KafkaError] = {}
    planners: dict[Resource, Planner] = {}
    async for resource, each in broker.turns.each(zip(asked, request.resources, strict=True)):
        if resource in duplicates:
            refusals[resource] = KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        elif (kind := _ALTERABLE.get(each.resource_type)) is None:
            refusals[resource] = _unsupported(each.resource_type)
        else:
            planners[resource] = partial(plan, kind=kind, resource=each, broker=broker)
    outcomes = await change_each(broker, planners, validate_only=request.validate_only)
    refusals |= {resource: out for resource, out in outcomes.items() if isinstance(out, KafkaError)}
    return [(resource, refusals.get(resource)) for resource in asked]


def _altered(schema: Schema, resource: Resource, refusal: KafkaError | None) -> Any:
    resource_type, name = resource
    return schema.AlterConfigsResourceResponse(
        error_code=error_of(refusal),
        error_message=refusal.message if refusal else None,
        resource_type=resource_type,
        resource_name=name,
    )


def _unsupported(resource_type: int) -> KafkaError:
    if resource_type == ResourceType.BROKER_LOGGER:
        problem = "Broker loggers cannot be configured on a running broker: set the log level when it starts."
    elif resource_type in list(ResourceType):
        problem = f"Unsupported resource type: {ResourceType(resource_type).name}"
    else:
        problem = f"Unknown resource type {resource_type}"
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


# -- ListConfigResources


def handle_list_config_resources(broker: Broker, context: RequestContext, request: Any) -> Work[Any]:
    schema = context.schema
    known = [ResourceType.CLIENT_METRICS] if context.version == 0 else list(ResourceType)
    asked = getattr(request, "resource_types", ()) or known
    code = ErrorCode.NONE
    found: list[Resource] = []
    if not set(asked) <= set(known):
        code = ErrorCode.UNSUPPORTED_VERSION
    else:
        if ResourceType.BROKER in asked:
            found.append((ResourceType.BROKER, str(broker.local.node_id)))
        if ResourceType.TOPIC in asked:
            found.extend((ResourceType.TOPIC, name) for name in broker.metadata.image.topics)
        if ResourceType.GROUP in asked:
            found.extend((ResourceType.GROUP, name) for kind, name in broker.metadata.image.configs if kind == "group")
    resources = []
    for resource_type, name in found:
        resources.append(schema.ConfigResource(resource_name=name, resource_type=int(resource_type)))
        yield
    return schema.ListConfigResourcesResponse(
        throttle_time=ms(0), error_code=error(code), config_resources=tuple(resources)
    )

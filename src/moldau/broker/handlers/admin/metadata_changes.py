"""Requests with many metadata changes: all valid changes are made in one write, each invalid one gets its own error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from moldau.broker import needs
from moldau.broker.turns import Work
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import ImageDraft, MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.topics import MAX_PARTITIONS_PER_REQUEST
from moldau.wire.messages import error


class Broker(needs.HasTurns, needs.HasMetadata, needs.HasController, Protocol):
    """What these handlers use."""


RECORDS_MAX = 2 * MAX_PARTITIONS_PER_REQUEST
"""Per request; Kafka's own limit is 10,000. Every broker applies all of them together."""

K = TypeVar("K")
Planner = Callable[[MetadataImage], list[Record]]
Outcomes = dict[K, list[Record] | KafkaError]
"""What each change came to: its records, or why it was refused."""


async def change_each(broker: Broker, planners: Mapping[K, Planner], *, validate_only: bool = False) -> Outcomes[K]:
    """Makes what the planners that succeed want true in one durable write; none with `validate_only`."""
    outcomes: Outcomes[K] = {}

    def plan(image: MetadataImage) -> Work[list[Record]]:
        planned: list[Record] = []
        draft = ImageDraft(image)
        for key, planner in planners.items():
            try:
                # On top of those before it: two topics of one request must not collide either.
                records = planner(draft.image())
                if len(planned) + len(records) > RECORDS_MAX:
                    raise KafkaError(
                        ErrorCode.POLICY_VIOLATION,
                        f"The request needs more than {RECORDS_MAX} metadata records; split it.",
                    )
            except KafkaError as refusal:
                outcomes[key] = refusal
            else:
                draft.add(records)
                outcomes[key] = records
                planned += records
            yield
        return planned

    if validate_only:
        await broker.turns.finish(plan(broker.metadata.image))
        return outcomes
    try:
        await broker.controller.change(plan)
    except KafkaError as failure:
        for key in planners:  # a controller that was deposed meanwhile plans nothing at all
            if not isinstance(outcomes.get(key), KafkaError):
                outcomes[key] = failure
    return outcomes


def repeated(keys: Iterable[K]) -> set[K]:
    """The keys that occur more than once."""
    return {key for key, count in Counter(keys).items() if count > 1}


def error_of(outcome: object) -> Any:
    """The error code of an answer: a refusal's own, none for anything else that came of a change."""
    return error(outcome.code if isinstance(outcome, KafkaError) else ErrorCode.NONE)

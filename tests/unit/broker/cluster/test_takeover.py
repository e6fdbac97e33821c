"""What the votes about a silent controller are worth."""

from __future__ import annotations

import pytest

from moldau.broker.cluster.takeover import ElectionWon
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord


def image_of(*, active: set[int], fenced: frozenset[int] = frozenset()) -> MetadataImage:
    return MetadataImage().apply(
        [
            BrokerRecord(each, each, (), None, fenced=each in fenced, incarnation_id="")
            for each in sorted(active | fenced)
        ]
    )


@pytest.mark.parametrize(
    ("image", "voters", "is_majority"),
    [
        (image_of(active={1, 2, 3}), {2, 3}, True),
        (image_of(active={1, 2, 3, 4}), {2, 3}, False),
        (image_of(active={1, 2}), {2}, False),
        (image_of(active={1, 2, 5}, fenced=frozenset({3, 4})), {2, 3, 4}, False),
    ],
)
def test_votes_are_counted_again_with_the_brokers_that_the_store_has(
    image: MetadataImage, voters: set[int], is_majority: bool
) -> None:
    assert ElectionWon(7, frozenset(voters), 0).is_majority_in(image) is is_majority

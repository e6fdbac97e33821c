"""Whether positions are still positions in the same records."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from moldau.spark.source.data_loss import Logs, find_losses
from moldau.spark.source.offsets import StreamOffset
from moldau.wire.topic_partition import TopicPartition

TP = TopicPartition("orders", 0)
OLD, NEW = UUID(int=1), UUID(int=2)
READ = StreamOffset({TP: 90}, {}, {"orders": OLD}, {TP: 3})
WITHOUT_ID = StreamOffset({TP: 90}, {})  # a checkpoint of Spark's source


def test_a_log_that_grew_has_lost_nothing() -> None:
    assert find_losses(READ, {}, Logs({TP: 90}, {"orders": OLD}, {})) == {}
    assert find_losses(READ, {}, Logs({TP: 95}, {}, {})) == {}  # a broker that tells no ids
    assert find_losses(WITHOUT_ID, {}, Logs({TP: 95}, {"orders": OLD}, {})) == {}


@pytest.mark.parametrize(
    ("read", "now", "what", "resume"),
    [
        (READ, Logs({}, {}, {}), "was deleted or is no longer subscribed to", None),
        (READ, Logs({TP: 99}, {"orders": NEW}, {}), "was deleted and created again: its id was .*AQ and is .*Ag", None),
        (READ, Logs({TP: 99}, {"orders": OLD}, {TP: 70}), "was cut short at offset 70 by an unclean election", 70),
        (READ, Logs({TP: 80}, {"orders": OLD}, {}), "was cut short or created again: it ends at 80", 80),
        (WITHOUT_ID, Logs({TP: 80}, {"orders": NEW}, {}), "was cut short or created again: it ends at 80", None),
    ],
)
def test_a_loss_says_what_happened_and_where_to_go_on(
    read: StreamOffset, now: Logs, what: str, resume: int | None
) -> None:
    loss = find_losses(read, {}, now)[TP]
    assert "orders-0 (read up to offset 90)" in loss.what
    assert loss.resume == resume
    assert re.search(what, loss.what)


def test_the_id_seen_since_the_start_stands_in_for_a_checkpoint_without() -> None:
    now = Logs({TP: 99}, {"orders": NEW}, {})
    assert find_losses(WITHOUT_ID, {"orders": NEW}, now) == {}
    assert "created again" in find_losses(WITHOUT_ID, {"orders": OLD}, now)[TP].what
    assert "created again" in find_losses(READ, {"orders": NEW}, now)[TP].what  # the checkpoint counts more

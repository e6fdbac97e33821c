"""Who reads the wall clock: a list, so that nobody measures with it by accident."""

from __future__ import annotations

import re
from pathlib import Path

import moldau

ROOT = Path(moldau.__file__).parent
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.(now|utcnow|today)\b|from time import .*\btime(_ns)?\b")

READERS = {
    "clocks.py": "the one place for all others: `node.clock` is for records and answers",
    "cli/records/consumer_perf.py": "prints when it began and ended",
    "cli/admin/metadata_quorum.py": "prints how long ago a timestamp of an answer was",
    "cli/coordination/reset_offsets.py": "offsets by duration: of timestamps in records",
    "cli/coordination/transactions.py": "prints how old timestamps of answers are",
    "metadata/stores/zookeeper_election.py": "timestamps in ZooKeeper's nodes, as Kafka has them",
    "spark/sink/row_sink.py": "timestamps of records",
    "testing/simulation/guards.py": "timestamps of records that an application sends",
}


def test_deadlines_and_durations_do_not_read_the_wall_clock() -> None:
    readers = {
        path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if WALL_CLOCK.search(path.read_text("utf-8"))
    }
    assert readers == set(READERS)

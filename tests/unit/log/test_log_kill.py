"""A real process, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from moldau.log.manager import LogManager
from moldau.wire.batch import decode_records
from tests.unit.log.log_helpers import NOW_MS, TOPIC_ID, Clock, batch, read_all, topic_config

WRITER = textwrap.dedent(
    """
    import sys, time, uuid
    from pathlib import Path
    from tests.unit.log.log_helpers import TOPIC_ID, topic_config
    from moldau.log.manager import LogManager
    from moldau.wire.batch import encode_batch

    manager = LogManager([Path(sys.argv[1])], default_config=topic_config(segment_bytes=5000), node_id=1,
                         clock=lambda: 1_700_000_000_000)
    manager.open()
    log = manager.create("t", 0, TOPIC_ID)
    while True:
        number = log.log_end_offset
        value = b"%d" % number
        log.append(bytearray(encode_batch([(b"k", value, 1_700_000_000_000, ())], producer_id=1,
                   producer_epoch=0, base_sequence=number)), leader_epoch=0, now_ms=1_700_000_000_000)
        if number % 100 == 50:
            log.flush()
            manager.checkpoint()
        print(number, flush=True)
    """
)


def manager_of(directory: Path) -> LogManager:
    config = topic_config(segment_bytes=5000)
    return LogManager([directory], default_config=config, node_id=1, clock=Clock(), recovery_threads=2)


@pytest.mark.parametrize("acks", [1, 333])
def test_acked_records_survive_kill_minus_nine(tmp_path: Path, acks: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as process:
        assert process.stdout is not None
        acked = [int(process.stdout.readline()) for _ in range(acks)]
        process.send_signal(signal.SIGKILL)
        acked += [int(line) for line in process.stdout.read().splitlines() if line]
    assert process.returncode == -signal.SIGKILL

    manager = manager_of(tmp_path)
    manager.open()
    log = manager.get("t", 0)
    assert log is not None
    assert log.topic_id == TOPIC_ID
    values = [decode_records(data, 0, header)[0].value for header, data in read_all(log)]
    assert values == [b"%d" % number for number in range(log.log_end_offset)]
    assert log.log_end_offset > acked[-1]
    end = log.log_end_offset
    following = batch(producer_id=1, producer_epoch=0, base_sequence=end)
    assert log.append(following, leader_epoch=0, now_ms=NOW_MS).base_offset == end
    manager.close()

    manager = manager_of(tmp_path)
    manager.open()
    again = manager.get("t", 0)
    assert again is not None
    assert again.log_end_offset == again.recovery_point == end + 1
    manager.close()

"""A checkpoint comes back from its copy as Spark needs it: the batch to repeat, and where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.engine.supervisor import RunningQuery
from moldau.pipelines.worker.checkpoint_copies import CheckpointCopies, restore
from moldau.pipelines.worker.offsets import altered, positions, shown
from moldau.pipelines.worker.records import Record, State

OFFSETS = 'v2\n{"batchWatermarkMs":0}\nrecords:{"t":{"0":%d}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batches 0 and 1 are done, 2 has begun."""
    folder = tmp_path / "orders" / "out"
    for name, text in {
        "metadata": '{"id":"q"}',
        "moldau.json": '{"version": 1}',
        ".metadata.crc": "x",
        **{f"offsets/{batch}": OFFSETS % (batch + 1) for batch in range(3)},
        **{f"commits/{batch}": "v1\n{}" for batch in range(2)},
        "state/0/1.delta": "x",
        "left_out/records.json": "[]",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def copied(checkpoint: Path, batch_id: int) -> State:
    state = State()

    def write(records: Sequence[Record]) -> None:
        for record in records:
            state.apply(record.topic, record.key.encode(), record.data)

    query = SimpleNamespace(checkpoint=str(checkpoint), pipeline="orders", name="out")
    CheckpointCopies(write, is_shared=False).before_batch(cast(RunningQuery, query), batch_id)
    return state


def test_the_batch_that_had_begun_is_repeated_elsewhere(checkpoint: Path, tmp_path: Path) -> None:
    restore(tmp_path / "elsewhere", copied(checkpoint, 2).checkpoints["orders"])
    place = tmp_path / "elsewhere" / "out"
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert found == {"metadata", "moldau.json", "left_out/records.json", "offsets/1", "offsets/2", "commits/1"}
    assert (place / "offsets/2").read_text() == OFFSETS % 3


def test_an_older_folder_is_replaced(checkpoint: Path, tmp_path: Path) -> None:
    stale = tmp_path / "elsewhere" / "out" / "offsets" / "9"
    stale.parent.mkdir(parents=True)
    stale.write_text("later, but of nobody")
    restore(tmp_path / "elsewhere", copied(checkpoint, 2).checkpoints["orders"])
    assert not stale.exists()


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil"])
def test_a_copy_writes_nothing_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outside"):
        restore(tmp_path, {"out": {"batch": 0, "files": {name: "x"}}})
    with pytest.raises(ConfigError, match="name"):
        restore(tmp_path, {f"../{name}": {"batch": 0, "files": {"metadata": "x"}}})


def test_a_checkpoint_that_does_not_fit_says_what_to_do(checkpoint: Path) -> None:
    (checkpoint / "left_out" / "records.json").write_text("x" * 1_000_000)
    with pytest.raises(ConfigError, match=r"moldau\.checkpoint\.dir"):
        copied(checkpoint, 2)


def test_offsets_are_those_of_the_last_batch_that_is_done(checkpoint: Path) -> None:
    copies = copied(checkpoint, 2).checkpoints["orders"]
    assert positions(copies["out"]) == {"records": {"t": {"0": 2}}}
    assert shown(copies, is_sink=True) == [
        {"partition": {"kafka_topic": "t", "kafka_partition": 0}, "offset": {"kafka_offset": 2}}
    ]


def test_altered_offsets_are_where_a_new_checkpoint_starts(checkpoint: Path, tmp_path: Path) -> None:
    state = copied(checkpoint, 2)
    given: list[dict[str, Any]] = [
        {"partition": {"kafka_topic": "t", "kafka_partition": 1}, "offset": {"kafka_offset": 7}}
    ]
    for record in altered("orders", state.checkpoints["orders"], given):
        state.apply(record.topic, record.key.encode(), record.data)
    restore(tmp_path / "elsewhere", state.checkpoints["orders"])
    assert [path.name for path in (tmp_path / "elsewhere" / "out").iterdir()] == ["moldau.json"]
    assert positions(state.checkpoints["orders"]["out"]) == {"records": {"t": {"0": 2, "1": 7}}}
    with pytest.raises(ConfigError, match="kafka_topic"):
        list(altered("orders", {}, [{"partition": {"topic": "t"}}]))

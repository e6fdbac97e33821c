"""The offsets of a connector as the REST interface shows and takes them, from the copies of its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moldau.errors import ConfigError
from moldau.pipelines.engine.checkpoints.checkpoint import FILE, MoldauFile
from moldau.pipelines.worker.records import Record, checkpoint_record

Copies = Mapping[str, Mapping[str, Any]]
"""By query: {"batch": 7, "files": {…}}, see `checkpoint_copies`."""

_NOT_STARTED = -1  # as a batch: only where to start is known
_SINK_QUERY, _SINK_SOURCE = "sink", "records"  # names that sink connectors have


def positions(copy: Mapping[str, Any]) -> dict[str, Any]:
    """Where the sources of a query are, by name: the end of its last batch that is known to be done."""
    files: Mapping[str, str] = copy.get("files", {})
    last = copy["batch"]
    if last == _NOT_STARTED:
        start = MoldauFile.parse(files.get(FILE), FILE).start or {}
        return {name: json.loads(offset) for name, offset in start.items()}
    batch = last if f"commits/{last}" in files else last - 1
    lines = files.get(f"offsets/{batch}", "").rstrip("\n").split("\n")[2:]
    named = (line.partition(":") for line in lines)
    return {name: json.loads(offset) for name, _, offset in named if offset not in ("", "-")}


def shown(copies: Copies, *, is_sink: bool) -> list[dict[str, Any]]:
    """Those of topics in Connect's words; a source's own under the names of its query and source."""
    found = ((query, name, at) for query, copy in copies.items() for name, at in positions(copy).items())
    if not is_sink:
        return [
            {"partition": {"query": query, "source": name}, "offset": {"position": at}} for query, name, at in found
        ]
    return [
        {"partition": {"kafka_topic": topic, "kafka_partition": int(partition)}, "offset": {"kafka_offset": offset}}
        for _, _, at in found
        for topic, partitions in at.items()
        for partition, offset in partitions.items()
    ]


def altered(name: str, copies: Copies, given: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    """Records that make a stopped sink connector start at these offsets, with a new checkpoint.

    A null offset leaves the partition to the connector's configuration. Raises ConfigError if one is wrong.
    """
    for query, copy in (copies or {_SINK_QUERY: {"batch": _NOT_STARTED}}).items():
        known = positions(copy) or {_SINK_SOURCE: {}}
        starts = {source: json.dumps(_merged(at, given)) for source, at in known.items()}
        files = {FILE: MoldauFile(start=starts).to_text()}
        yield checkpoint_record(name, query, {"batch": _NOT_STARTED, "files": files})


def _merged(at: Mapping[str, Mapping[str, int]], given: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    merged = {topic: dict(partitions) for topic, partitions in at.items()}
    for topic, partition, offset in map(_sink_offset, given):
        if offset is None:
            merged.get(topic, {}).pop(partition, None)
        else:
            merged.setdefault(topic, {})[partition] = offset
    return {topic: partitions for topic, partitions in merged.items() if partitions}


def _sink_offset(given: Mapping[str, Any]) -> tuple[str, str, int | None]:
    try:
        partition, offset = given["partition"], given.get("offset")
        number = None if offset is None else int(offset["kafka_offset"])
        return str(partition["kafka_topic"]), str(int(partition["kafka_partition"])), number
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(
            'each offset of a sink connector looks like {"partition": {"kafka_topic": "T", "kafka_partition": 0}, '
            '"offset": {"kafka_offset": 42}}'
        ) from None

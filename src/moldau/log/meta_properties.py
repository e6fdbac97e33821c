"""`meta.properties`: which cluster and which node a log directory belongs to, and the directory's own id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from moldau.config.properties import format_properties, parse_properties
from moldau.disk import OS_DISK, Disk, read_file, replace_file
from moldau.errors import ConfigError
from moldau.wire.uuids import uuid_to_text

META_PROPERTIES = "meta.properties"


def check_in(
    disk: Disk,
    directories: Sequence[Path],
    node_id: int,
    cluster_id: str | None = None,
    *,
    new_uuid: Callable[[], UUID],
) -> tuple[str, dict[Path, str]]:
    """Checks that all directories belong to this node, marks new ones; returns cluster and directory ids.

    ConfigError when a directory belongs to another node or another cluster: its partitions are not ours.
    """
    found = {directory: _read(disk, directory) for directory in directories}
    for directory, properties in found.items():
        path = directory / META_PROPERTIES
        owner = properties.get("node.id", properties.get("broker.id"))
        if owner is not None and owner != str(node_id):
            raise ConfigError(f"{path} belongs to node {owner}, node.id is {node_id}: use another directory or that id")
        known = properties.get("cluster.id")
        if known is not None and cluster_id is not None and known != cluster_id:
            raise ConfigError(f"{path} belongs to cluster {known}, expected {cluster_id}: use another directory")
        cluster_id = cluster_id or known
    if cluster_id is None:
        cluster_id = uuid_to_text(new_uuid())
    directory_ids = {}
    for directory, properties in found.items():
        complete = {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(node_id),
            "directory.id": properties.get("directory.id") or uuid_to_text(new_uuid()),
        }
        directory_ids[directory] = complete["directory.id"]
        if properties != complete:
            replace_file(disk, directory / META_PROPERTIES, format_properties(complete).encode())
    return cluster_id, directory_ids


def read_cluster_id(directories: Sequence[Path], disk: Disk = OS_DISK) -> str | None:
    """The cluster that these directories belong to; None if they are new."""
    return next((known for each in directories if (known := _read(disk, each).get("cluster.id")) is not None), None)


def _read(disk: Disk, directory: Path) -> dict[str, str]:
    try:
        return dict(parse_properties(read_file(disk, directory / META_PROPERTIES).decode()))
    except FileNotFoundError:
        return {}

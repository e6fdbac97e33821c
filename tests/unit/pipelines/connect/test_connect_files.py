"""The files of `connect-standalone`."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.files import checkpoint_folder, read_connector

CONFIG = {"name": "c", "connector.class": "FileStreamSource", "tasks.max": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "name=c\nconnector.class=FileStreamSource\ntasks.max=1\n",
        '{"name": "c", "connector.class": "FileStreamSource", "tasks.max": "1"}',
        ' {"name": "c", "config": {"connector.class": "FileStreamSource", "tasks.max": 1}}',
    ],
)
def test_a_connector_is_properties_or_json_or_the_body_of_a_request(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert read_connector(path) == CONFIG


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("connector.class=FileStreamSource", "has no name"),
        ('{"name": "a", "config": {"name": "b"}}', "the name in 'config' is b, but the connector's is a"),
        ('{"name": "a", "tags": ["b"]}', "tags: expected text"),
        ('{"name"', "not JSON"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"{path}: .*{message}"):
        read_connector(path)


def test_places_are_kept_beside_the_file_of_the_offsets(tmp_path: Path) -> None:
    worker = {"offset.storage.file.filename": str(tmp_path / "connect.offsets")}
    assert checkpoint_folder(worker) == str(tmp_path / "connect.offsets.checkpoints")
    with pytest.raises(ConfigError, match=r"has no offset\.storage\.file\.filename"):
        checkpoint_folder({})

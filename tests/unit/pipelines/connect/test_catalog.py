"""Plugins are found as Connect finds them."""

from __future__ import annotations

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.catalog import CONNECTORS, aliases, all_plugins, find_plugin
from moldau.pipelines.doors.connect.plugins import PluginKind

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@pytest.mark.parametrize("name", [SOURCE, "FileStreamSourceConnector", "FileStreamSource", " FileStreamSource "])
def test_a_connector_is_found_by_its_class_and_by_its_aliases(name: str) -> None:
    assert find_plugin(name, *CONNECTORS).name == SOURCE


def test_one_name_may_be_a_converter_and_a_header_converter() -> None:
    assert find_plugin("StringConverter", PluginKind.CONVERTER).kind is PluginKind.CONVERTER
    assert find_plugin("StringConverter", PluginKind.HEADER_CONVERTER).kind is PluginKind.HEADER_CONVERTER


@pytest.mark.parametrize("name", ["FileStramSource", "com.example.FileStreamSource2"])
def test_an_unknown_class_is_answered_with_the_nearest_known_one(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"there is no connector {name}: did you mean {SOURCE}\?"):
        find_plugin(name, *CONNECTORS)


def test_a_class_of_another_kind_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"there is no converter FileStreamSource\. There are: .*Json"):
        find_plugin("FileStreamSource", PluginKind.CONVERTER)


def test_full_names_are_unique_within_a_kind() -> None:
    names = [(plugin.kind, name) for plugin in all_plugins() for name in plugin.names]
    assert len(names) == len(set(names))
    assert all(aliases(plugin) for plugin in all_plugins())

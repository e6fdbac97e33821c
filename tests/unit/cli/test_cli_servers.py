"""Sample files, the log's configuration, and ZooKeeper where it cannot be started."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import moldau
from moldau.cli import config_samples
from moldau.cli.servers import broker, logs, zookeeper
from moldau.config.broker import BrokerConfig
from moldau.config.properties import parse_properties
from moldau.errors import ConfigError


def test_the_samples_are_written_and_none_is_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "config"
    assert config_samples.main([str(folder)]) == 0
    names = [
        "connect-console-sink.properties",
        "connect-console-source.properties",
        "connect-distributed.properties",
        "connect-file-sink.properties",
        "connect-file-source.properties",
        "connect-standalone.properties",
        "consumer.properties",
        "log.properties",
        "producer.properties",
        "server.properties",
        "zookeeper.properties",
    ]
    assert capsys.readouterr().out.splitlines() == [str(folder / name) for name in names]
    (folder / "server.properties").write_text("mine")
    assert config_samples.main([str(folder)]) == 2
    assert "server.properties" in capsys.readouterr().err
    assert (folder / "server.properties").read_text() == "mine"
    assert config_samples.main([str(folder), "--force"]) == 0
    assert "broker.id=0" in (folder / "server.properties").read_text()


def test_the_sample_of_a_server_has_no_key_that_means_nothing(tmp_path: Path) -> None:
    config_samples.main([str(tmp_path)])
    config, warnings = BrokerConfig.from_properties(parse_properties((tmp_path / "server.properties").read_text()))
    assert warnings == []
    assert (config.node_id, config.zookeeper_connect) == (0, "localhost:2181")


@pytest.fixture
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger("moldau.tests.part").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_root_logger")
def test_the_log_is_as_its_file_says_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "log.properties"
    file.write_text("level=warning\nformat=json\nlevel.moldau.tests.part=DEBUG\n")
    logs.set_up(None, None, file=file)
    root = logging.getLogger()
    assert root.level == logging.WARNING
    assert isinstance(root.handlers[0].formatter, logs.JsonFormatter)
    assert logging.getLogger("moldau.tests.part").isEnabledFor(logging.DEBUG)
    logs.set_up("text", "ERROR", file=file)
    assert root.level == logging.ERROR
    assert isinstance(root.handlers[0].formatter, logs.TextFormatter)


def test_the_loggers_that_sample_and_docs_name_are_packages_of_the_broker() -> None:
    sample = Path(moldau.__file__).parent / "cli" / "samples" / "log.properties"
    page = Path(__file__).parents[3] / "docs" / "commands.md"
    named = {name for file in (sample, page) for name in re.findall(r"level\.(moldau[\w.]*)=", file.read_text("utf-8"))}
    assert named
    assert all(importlib.util.find_spec(name) for name in named)


@pytest.mark.parametrize("line", ["level=LOUD", "format=xml", "log4j.rootLogger=INFO, stdout"])
def test_a_wrong_line_of_the_logs_file_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "log.properties"
    file.write_text(line)
    with pytest.raises(ConfigError, match="keys are level, format and") as wrong:
        logs.set_up(None, None, file=file)
    assert line.partition("=")[0] in str(wrong.value)


def test_without_pyspark_zookeeper_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zookeeper, "find_spec", lambda _: None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = tmp_path / "zookeeper.properties"
    file.write_text("dataDir=/nowhere\nclientPort=1\n")
    for options in ([], ["-daemon"]):
        assert zookeeper.start_main([*options, str(file)]) == 2
        assert "which is not installed: run pip install '.[spark,zookeeper]'" in capsys.readouterr().err


@pytest.mark.usefixtures("_root_logger")
def test_a_log_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "file"))
    assert broker.start_main(["-daemon"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"moldau: cannot write the log {tmp_path}/file/server.log: ")
    assert error.endswith("set LOG_DIR to another directory\n")
    assert error.count("\n") == 1


def test_zookeepers_files_are_checked_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert zookeeper.zk_server_main(["start"]) == 2
    assert "moldau config-samples config" in capsys.readouterr().err
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "zoo.cfg").write_text("tickTime=2000\n")
    assert zookeeper.zk_server_main(["start"]) == 2
    assert "conf/zoo.cfg does not set dataDir and clientPort" in capsys.readouterr().err
    assert zookeeper.stop_main([]) == 1
    assert "No zookeeper server to stop" in capsys.readouterr().err

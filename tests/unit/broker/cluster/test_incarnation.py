"""What a broker says of its life before: whether records it had may be gone."""

from __future__ import annotations

import uuid
from pathlib import Path

from moldau.broker.cluster.incarnation import EPOCH_FILE, Incarnation, forget_epoch
from moldau.cluster.replica import UNKNOWN_EPOCH
from moldau.config.broker import BrokerConfig
from moldau.config.topic import TopicConfig
from moldau.log.files import LogDir
from moldau.log.manager import LogManager


def opened(*folders: Path) -> LogManager:
    config, _ = BrokerConfig.from_properties({"log.dirs": str(folders[0])})
    logs = LogManager(folders, default_config=TopicConfig.resolve({}, config), node_id=1, clock=lambda: 0)
    logs.open()
    return logs


def incarnation(logs: LogManager, boot_id: str = "this") -> Incarnation:
    return Incarnation.load(logs, uuid.uuid4(), boot_id)


def crashed(logs: LogManager) -> None:
    """The process is gone; nothing was marked as clean."""
    logs._unlock()


def test_a_first_life_knows_of_none_before(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    assert incarnation(logs).previous_broker_epoch == UNKNOWN_EPOCH
    logs.close()


def test_a_killed_process_on_a_machine_that_stays_up_has_lost_nothing(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    incarnation(logs).save_epoch(41)
    crashed(logs)
    logs = opened(tmp_path)
    assert not logs.was_clean
    assert incarnation(logs).previous_broker_epoch == 41
    logs.close()


def test_a_process_whose_disk_failed_may_have_lost_records_though_the_disk_works_again(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    incarnation(logs).save_epoch(41)
    forget_epoch(LogDir(tmp_path))
    forget_epoch(LogDir(tmp_path))
    crashed(logs)
    logs = opened(tmp_path)
    assert incarnation(logs).previous_broker_epoch == UNKNOWN_EPOCH
    logs.close()


def test_a_machine_that_went_down_may_have_lost_records(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    incarnation(logs).save_epoch(41)
    crashed(logs)
    logs = opened(tmp_path)
    assert incarnation(logs, "another").previous_broker_epoch == UNKNOWN_EPOCH
    logs.close()


def test_a_clean_stop_outlasts_the_machine(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    incarnation(logs).save_epoch(41)
    logs.close(41)
    logs = opened(tmp_path)
    assert incarnation(logs, "another").previous_broker_epoch == 41
    logs.close()


def test_a_folder_that_was_replaced_counts_as_a_loss(tmp_path: Path) -> None:
    logs = opened(tmp_path / "a", tmp_path / "b")
    incarnation(logs).save_epoch(41)
    logs.close(41)
    (tmp_path / "b" / EPOCH_FILE).unlink()
    logs = opened(tmp_path / "a", tmp_path / "b")
    assert incarnation(logs).previous_broker_epoch == UNKNOWN_EPOCH
    logs.close()


def test_a_failed_folder_does_not_keep_a_broker_from_living(tmp_path: Path) -> None:
    logs = opened(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / EPOCH_FILE).mkdir()
    incarnation(logs).save_epoch(41)
    logs.close(41)
    logs = opened(tmp_path / "a", tmp_path / "b")
    assert incarnation(logs).previous_broker_epoch == UNKNOWN_EPOCH
    logs.close()

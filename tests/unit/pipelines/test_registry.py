"""How connectors and functions beside a pipeline file are found, and what reaches Spark's workers with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import connector, load_attribute


def test_modules_of_the_folder_are_sent_to_workers_but_not_an_environment_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / ".venv"
    environment.mkdir()
    (environment / "installed_beside_steps.py").write_text("")
    (tmp_path / "steps_to_send.py").write_text("import installed_beside_steps\n\ndef mark(): ...\n")
    monkeypatch.setattr(sys, "path", [str(environment), *sys.path])
    load_attribute("steps_to_send", "mark", tmp_path, "step mark")
    sent = set(cloudpickle.list_registry_pickle_by_value())
    assert "steps_to_send" in sent
    assert "installed_beside_steps" not in sent


def test_a_built_in_connector_leaves_pythons_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert connector("topic", tmp_path).name == "topic"
    assert str(tmp_path) not in sys.path


def test_an_error_of_a_module_says_in_which_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "without_imports.py").write_text("import sys\n\nclass Mine(Connector): ...\n")
    with pytest.raises(ConfigError, match=r"name 'Connector' is not defined \(without_imports.py, line 3\)"):
        connector("without_imports:Mine", tmp_path)

"""The examples of docs/pipelines.md run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from soak.broker_process import BrokerProcess
from soak.pipeline_process import environment
from tests.integration.pipelines.processes import PipelineProcess

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
BLOCKS = re.findall(r"^```(\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(WITHOUT_BROKER, WITH_BROKER, WHILE_IT_RUNS, DEAD_LETTERS) = (code for language, code in BLOCKS if language == "sh")
(FILE,) = (code for language, code in BLOCKS if language == "yaml")
(PROGRAM,) = (code for language, code in BLOCKS if language == "python")
RUN = "moldau pipeline run page-counts.yaml"


def test_the_page_has_no_other_examples() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "yaml", "python"}


def shell(code: str, folder: Path, servers: str = "") -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = re.sub(r"^(moldau console-consumer)", rf"\1 --bootstrap-server {servers}", code, flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail\n{code}"],
        cwd=folder,
        env=environment(folder) | {"PATH": path, "KAFKA": servers},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.timeout(400)
def test_the_first_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1 test passed" in shell(WITHOUT_BROKER, tmp_path)
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker:
        before, found, _ = WITH_BROKER.partition(RUN)
        assert found
        shell(before, tmp_path, broker.bootstrap)
        monkeypatch.setenv("KAFKA", broker.bootstrap)
        with PipelineProcess(tmp_path, "page-counts.yaml") as run:
            run.until_state("page-counts", "RUNNING")
            output = shell(WHILE_IT_RUNS, tmp_path, broker.bootstrap)
            assert run.wait() == 0, run.output()
        assert output.count('"views":') == 3
        assert "RUNNING" in output


@pytest.mark.timeout(300)
def test_the_file_passes_its_test_and_its_dead_letters_can_be_listed(tmp_path: Path) -> None:
    (tmp_path / "page-counts.yaml").write_text(FILE)
    assert "1 test passed" in shell(
        "moldau pipeline lint page-counts.yaml; moldau pipeline test page-counts.yaml", tmp_path
    )
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker:
        assert "0 dead letters" in shell(DEAD_LETTERS, tmp_path, broker.bootstrap)


def test_the_program_prints_what_it_states(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    printed = shell("python program.py", tmp_path).splitlines()
    assert [line for line in printed if "shop_pages" not in line] == re.findall(r"# → (.*)", PROGRAM)
    assert "shop-pages.shop_pages FINISHED" in printed[-2]

"""Every example of the README and of docs/applications.md runs as it stands there, and ends quietly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from soak.broker_process import BrokerProcess

ROOT = Path(__file__).parents[2]
PAGES = "".join((ROOT / page).read_text() for page in ("README.md", "docs/applications.md"))
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGES, flags=re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [code for language, code in BLOCKS if language == "sh"]


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=110,  # Spark's, on a busy machine
        check=False,
    )


def test_every_example_is_a_test_a_configuration_of_tests_or_says_what_it_prints() -> None:
    assert [code for code in PYTHON if not re.search(r"def test_|def kafka_broker_config|# → ", code)] == []


@pytest.mark.parametrize("code", [code for code in PYTHON if "def test_" in code])
def test_a_test_of_the_readme_passes(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_readme_example.py").write_text(code)
    (tmp_path / "conftest.py").write_text(next(code for code in PYTHON if "def kafka_broker_config" in code))
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("code", [code for code in PYTHON if "# → " in code])
def test_a_script_of_the_readme_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code)
    done = run([sys.executable, "example.py"], tmp_path)
    promised = "".join(f"{line}\n" for line in re.findall(r"# → (.*)", code))
    assert (done.returncode, done.stdout) == (0, promised), done.stderr
    assert "Traceback" not in done.stderr
    if "spark" not in code:  # whose JVM has a word to say about itself
        assert done.stderr == ""


def test_the_commands_of_the_readme_run_in_their_order(tmp_path: Path) -> None:
    (script,) = SHELL
    with BrokerProcess(tmp_path, {"log.dirs": tmp_path / "moldau-data"}) as broker:
        code = "set -eo pipefail\n" + script.replace("localhost:9092", broker.bootstrap)
        done = run(["bash", "-c", code], tmp_path, **broker.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Created topic orders." in done.stdout
        assert "\nhello\n" in done.stdout
        assert "payload: hello" in done.stdout
        assert broker.wait() == 0

"""Every example of the README and of the pages under docs/ runs as it is printed, and ends quietly.

`docs/commands.md` and `docs/spark.md` have their own tests (`cli/test_cli_documents.py`, `spark/test_spark_page.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.config.broker import BrokerConfig
from moldau.config.properties import parse_properties
from soak.broker_process import BrokerProcess, free_port

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/applications.md",
    "docs/testing.md",
    "docs/simulation.md",
    "docs/server.md",
    "docs/cluster.md",
    "docs/spark-quickstart.md",
)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Each block in this language, with a name for it."""
    for page in PAGES:
        found = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
        yield from ((f"{page}-{number}", code) for number, code in enumerate(found, 1))


PYTHON = dict(blocks("python"))
SHELL = dict(blocks("sh"))
TESTS = {name: code for name, code in PYTHON.items() if "def test_" in code}
SCRIPTS = {name: code for name, code in PYTHON.items() if "# → " in code}
CONFTEST = next(code for code in PYTHON.values() if "def kafka_broker_config" in code)


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=110,  # Spark on a busy machine
        check=False,
    )


def run_shell(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(["bash", "-c", f"set -eo pipefail\n{code}"], folder, **environment)


def test_every_example_is_a_test_a_conftest_or_states_what_it_prints() -> None:
    assert [name for name, code in PYTHON.items() if name not in TESTS | SCRIPTS and code != CONFTEST] == []


@pytest.mark.parametrize("name", TESTS)
def test_a_test_of_the_pages_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(TESTS[name])
    (tmp_path / "conftest.py").write_text(CONFTEST)
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed", done.stdout)


def test_the_tests_among_the_examples_pass() -> None:
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples"], ROOT)
    assert "8 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_the_pages_prints_what_it_states(name: str, tmp_path: Path) -> None:
    code = SCRIPTS[name]
    (tmp_path / "example.py").write_text(code)
    done = run([sys.executable, "example.py"], tmp_path)
    promised = "".join(f"{line}\n" for line in re.findall(r"# → (.*)", code))
    assert (done.returncode, done.stdout) == (0, promised), done.stderr
    assert "Traceback" not in done.stderr
    if "spark" not in code:  # Spark's JVM prints warnings of its own
        assert done.stderr == ""


def test_the_commands_for_one_broker_run_in_their_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"log.dirs": tmp_path / "moldau-data"}) as broker:
        code = SHELL["docs/server.md-1"].replace("localhost:9092", broker.bootstrap)
        done = run_shell(code, tmp_path, **broker.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Created topic orders." in done.stdout
        assert "\nhello\n" in done.stdout
        assert "payload: hello" in done.stdout
        assert broker.wait() == 0


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("README.md-1", ["healthy", "Created topic orders.", "\nhello\n"]),
        ("docs/cluster.md-1", ["healthy", "broker 2 is ready"]),
    ],
)
def test_the_commands_for_a_cluster_run_in_their_order(name: str, printed: list[str], tmp_path: Path) -> None:
    port, environment = free_port(3), {"XDG_RUNTIME_DIR": str(tmp_path)}
    code = SHELL[name].replace("--brokers 3", f"--brokers 3 --port {port}")
    code = re.sub(
        r"^(.*)(moldau cluster status|kafka-[a-z-]+)", rf"\1\2 --bootstrap-server 127.0.0.1:{port}", code, flags=re.M
    )
    try:
        done = run_shell(code, tmp_path, **environment)
    finally:
        run_shell("moldau stop || true", tmp_path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [text for text in printed if text not in done.stdout] == []
    assert "; stop it with moldau stop\n" in done.stdout
    assert f"stopping the brokers on PLAINTEXT://127.0.0.1:{port}, " in done.stdout


def test_every_block_of_commands_is_run_by_a_test_above() -> None:
    assert SHELL.keys() == {"README.md-1", "docs/server.md-1", "docs/cluster.md-1"}


@pytest.mark.parametrize(("name", "code"), list(blocks("properties")))
def test_a_configuration_of_the_pages_is_valid(name: str, code: str) -> None:
    _, warnings = BrokerConfig.from_properties(parse_properties(code), strict=True)
    assert warnings == [], name

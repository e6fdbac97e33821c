"""Settings of a session, the class archive's files, the process that workers are forked from: all without a JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from moldau.errors import ConfigError
from moldau.spark.jvm_connector import apply_options
from moldau.spark.startup import class_archive, daemon, fork_client, spark_session
from moldau.spark.startup.fork_server import ForkServer, start_fork_server
from moldau.spark.startup.java import Java

JAVA = Java(Path("/java"), "17.0.15")


class Recorder:
    """Stands for a builder of Spark's, of which only two methods matter here."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def format(self, name: str) -> Recorder:
        self.name = name
        return self

    def options(self, **options: str) -> Recorder:
        self.given = options
        return self


class WriteRecorder(Recorder):
    def mode(self) -> None: ...


def java_options(short_job: bool = False, master: str = "local[2]", **extra: str) -> list[str]:
    return spark_session._java_options({"spark.master": master, **extra}, short_job)


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[2, 5]", 2), ("local[*]", os.cpu_count()), ("local[*,2]", os.cpu_count())],
)
def test_a_local_shuffle_has_as_many_partitions_as_the_master_has_threads(master: str, cores: int) -> None:
    assert spark_session._local_settings(master)["spark.sql.shuffle.partitions"] == str(cores)


def test_only_a_short_job_goes_without_the_optimizing_compiler() -> None:
    assert java_options(short_job=True) == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    assert all(option.startswith("-XX:Tier4") for option in java_options())


def test_a_users_collector_replaces_ours() -> None:
    theirs = {"spark.driver.extraJavaOptions": "-Dx=1 -XX:+UseParallelGC"}
    assert java_options(short_job=True, **theirs) == ["-XX:TieredStopAtLevel=1"]


def test_a_cluster_gets_no_settings_of_a_local_jvm() -> None:
    assert java_options(master="spark://127.0.0.1:7077") == []


@pytest.mark.parametrize(("version", "flag"), [("17.0.15", "SharedArchiveFile"), ("25.0.2", "AOTCache")])
def test_an_archive_is_used_if_there_is_one(
    version: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = Java(Path("/java"), version)
    archive = class_archive.archive_path(java)
    assert class_archive.archive_options(java) == []
    archive.parent.mkdir()
    archive.write_bytes(b"classes")
    assert class_archive.archive_options(java)[-1] == f"-XX:{flag}={archive}"


def test_a_cache_folder_that_cannot_be_read_does_not_keep_a_session_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    assert class_archive.archive_options(JAVA) == []


def test_a_user_without_a_home_directory_can_start_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert class_archive.archive_options(JAVA) == []


@pytest.mark.parametrize("theirs", ["/opt/cluster/python", None])
def test_a_session_without_the_fork_server_gets_the_users_python_again(
    theirs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "_fork_server", lambda: ForkServer("/tmp/fork/python", None))  # type: ignore[arg-type]
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, theirs or "")
        if theirs is None:
            monkeypatch.delenv(name)
    for _ in range(2):
        spark_session._set_python(True)
        assert os.environ["PYSPARK_PYTHON"] == "/tmp/fork/python"
    for _ in range(2):
        spark_session._set_python(False)
        assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == (theirs or sys.executable)


def use_session(monkeypatch: pytest.MonkeyPatch, cache: Path, code: str) -> None:
    """Runs this code, with the path as its argument, where Spark would write an archive."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(class_archive, "_session_command", lambda path: [sys.executable, "-c", code, str(path)])


def test_the_newest_archives_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_session(monkeypatch, tmp_path, "import sys; open(sys.argv[1], 'w').close()")
    folder = class_archive.cache_folder()
    folder.mkdir()
    for age, name in enumerate(["spark-1.jsa", "spark-2.jsa", "spark-3.jsa.123"]):
        (folder / name).touch()
        os.utime(folder / name, (1000 - age, 1000 - age))
    made = class_archive.make_archive(JAVA)
    assert made == class_archive.archive_path(JAVA)
    assert {path.name for path in folder.iterdir()} == {made.name, "spark-1.jsa"}


def test_an_archive_that_cannot_be_made_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_session(monkeypatch, tmp_path, "import sys; open(sys.argv[1], 'w').close(); sys.exit('no space left')")
    with pytest.raises(ConfigError, match=r"wrote no archive of Spark's classes: no space left"):
        class_archive.make_archive(JAVA)
    assert class_archive.archives() == []


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [({}, "", True), ({}, "false", False), ({"spark.moldau.fastStart": "TRUE"}, "false", True)],
)
def test_one_setting_turns_the_fast_start_off(
    config: dict[str, str], environment: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOLDAU_FAST_START", raising=False)
    if environment:
        monkeypatch.setenv("MOLDAU_FAST_START", environment)
    assert spark_session._is_fast_start(config) is expected


def test_any_other_value_of_the_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"fastStart .* is .maybe.: expected true or false"):
        spark_session._is_fast_start({"spark.moldau.fastStart": "maybe"})


def test_a_zip_of_the_same_pyspark_gives_way_to_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    version = (Path(pyspark.__file__).parent / "version.py").read_bytes()
    same, other = tmp_path / "same" / "pyspark.zip", tmp_path / "other" / "pyspark.zip"
    for path, content in ((same, version), (other, b"__version__ = '0'")):
        path.parent.mkdir()
        with ZipFile(path, "w") as archive:
            archive.writestr("pyspark/version.py", content)
    monkeypatch.setattr(sys, "path", [str(same), str(other), *sys.path])
    daemon.prefer_installed_pyspark()
    assert str(same) not in sys.path
    assert str(other) in sys.path


def test_workers_draw_different_random_numbers() -> None:
    code = (
        "import os, numpy.random, moldau.spark.startup.daemon as d; d._MODULES = (); d.preload()\n"
        "for _ in range(3):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: print(numpy.random.rand(), flush=True); os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
    )
    drawn = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(set(drawn.split())) == 3


@pytest.fixture(scope="module")
def fork_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fork")


@pytest.fixture(scope="module")
def python(fork_folder: Path) -> Iterator[str]:
    server = start_fork_server(fork_folder)
    yield server.script
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.process.wait(20) == 0


def test_a_fork_becomes_sparks_daemon(python: str) -> None:
    """As Spark starts it: a port on standard output, an end when standard input is closed."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret", "PYTHONPATH": ""}
    process = subprocess.Popen(
        [python, "-m", "pyspark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert 0 < int.from_bytes(process.stdout.read(4), "big") < 65536
        process.stdin.close()
        process.wait(20)
    finally:
        process.kill()
        process.stdout.close()


def test_a_daemon_outlives_signals_to_end_and_ends_with_its_input(python: str) -> None:
    """A whole process group is signalled, or all processes of a unit of systemd; Spark closes the input, too."""
    process = subprocess.Popen(
        [python, "-m", "moldau.spark.startup.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.read(4)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.stdin.close()
        process.wait(20)
        assert process.stdout.read() == b""  # its daemon held the other end
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()


def test_a_reader_is_killed_when_its_input_is_closed(tmp_path: Path) -> None:
    """It may hang; and the signal to terminate, which Spark sends as well, is ignored."""
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        command = [sys.executable, str(fork_client.__file__), sys.executable, address, "-m", "pyspark.some.reader"]
        client = subprocess.Popen(command, stdin=subprocess.PIPE)
        reader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        assert client.stdin is not None
        try:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(65536):
                    pass
                client.send_signal(signal.SIGTERM)
                connection.sendall(reader.pid.to_bytes(fork_client.PID_BYTES, "big"))
                client.stdin.close()
                assert reader.wait(20) == -signal.SIGKILL
                assert client.wait(20) == 0
        finally:
            client.kill()
            reader.kill()
            client.stdin.close()


def test_other_commands_are_run_by_the_real_python(python: str) -> None:
    command = [python, "-c", "import sys; print(sys.executable)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == sys.executable


def test_without_the_fork_server_the_real_python_is_the_daemon(python: str, fork_folder: Path) -> None:
    deadline = time.monotonic() + 20
    while not (fork_folder / "socket").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (fork_folder / "socket").unlink()
    process = subprocess.run(
        [python, "-m", "pyspark.daemon", "pyspark.worker"],
        check=False,
        input=b"",
        capture_output=True,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"},
        timeout=60,
    )
    assert len(process.stdout) == 4


def test_without_pyspark_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "find_spec", lambda _: None)
    monkeypatch.setattr(spark_session, "_running_session", lambda: None)
    spark_session._fork_server.cache_clear()
    with pytest.raises(ConfigError, match=r"PySpark is not installed: run pip install '\.\[spark\]'"):
        spark_session.get_or_create()
    assert spark_session._fork_server.cache_info().misses == 0


def test_a_fork_server_whose_folder_is_gone_ends_quietly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau.spark.startup.fork_server", str(tmp_path / "gone" / "socket")]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_connector_jvm_is_the_same_options_under_another_format() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "failOnDataLoss": False}
    ours = apply_options(Recorder(), options)  # type: ignore[type-var]
    assert (ours.name, ours.given) == ("moldau", options | {"failOnDataLoss": "false"})
    theirs = apply_options(Recorder(), options | {"Connector": "jvm"})  # type: ignore[type-var]
    assert theirs.name == "kafka"
    assert theirs.given == ours.given | {"kafka.isolation.level": "read_committed"}


def test_connector_jvm_refuses_what_it_cannot_do() -> None:
    for option in ("value.format", "commitGroupId", "TXNAPPID"):
        with pytest.raises(ConfigError, match="is not supported by connector=jvm"):
            apply_options(Recorder(), {"connector": "jvm", option: "x"})  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="cannot write exactly once"):
        apply_options(WriteRecorder(), {"connector": "jvm"})  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="connector=java: expected one of moldau, jvm"):
        apply_options(Recorder(), {"connector": "java"})  # type: ignore[type-var]
    given = {"connector": "jvm", "processing.guarantee": "at_least_once", "topic": "t"}
    assert apply_options(WriteRecorder(), given).given == {"topic": "t"}  # type: ignore[type-var]

"""Settings of a session, the class archive's files, the process that workers are forked from: all without a JVM."""

from __future__ import annotations

import atexit
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
from moldau.spark.startup import class_data, daemon, gateway, spark_session, warm_client
from moldau.spark.startup.java import Java
from moldau.spark.startup.warm_python import start_warm_python

JAVA = Java(Path("/java"), "17.0.15", True)


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


def test_an_archive_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MOLDAU_CLASS_DATA", raising=False)
    later: list[object] = []
    monkeypatch.setattr(atexit, "register", later.append)
    archive = class_data.archive_path(JAVA)
    assert (class_data.archive_options(JAVA), len(later)) == ([], 1)
    archive.parent.mkdir()
    archive.write_bytes(b"classes")
    assert f"-XX:SharedArchiveFile={archive}" in class_data.archive_options(JAVA)
    monkeypatch.setenv("MOLDAU_CLASS_DATA", "off")
    assert class_data.archive_options(JAVA) == []
    assert len(later) == 1


def test_only_one_process_makes_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "cache" / "spark.jsa"
    with class_data._lock(archive) as first, class_data._lock(archive) as second:
        assert (first, second) == (True, False)
    with pytest.raises(ConfigError), class_data._lock(archive):
        raise ConfigError("no archive came of it")
    with class_data._lock(archive) as at_once:
        assert not at_once
    monkeypatch.setattr(class_data, "MAKING_AGAIN_S", -1)
    with class_data._lock(archive) as next_day:
        assert next_day


def test_old_archives_make_room(tmp_path: Path) -> None:
    for age in range(5):
        archive = tmp_path / f"spark-{age}.jsa"
        archive.touch()
        os.utime(archive, (1000 - age, 1000 - age))
    class_data._remove_old_archives(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spark-0.jsa", "spark-1.jsa", "spark-2.jsa"]


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
def warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm")


@pytest.fixture(scope="module")
def python(warm_folder: Path) -> Iterator[str]:
    warm = start_warm_python(warm_folder)
    yield warm.script
    assert warm.process.stdin is not None
    warm.process.stdin.close()
    assert warm.process.wait(20) == 0


def test_a_warm_python_becomes_sparks_daemon(python: str) -> None:
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


def test_a_warm_python_that_is_told_to_end_ends_its_daemon(python: str) -> None:
    process = subprocess.Popen(
        [python, "-m", "pyspark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.read(4)
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert process.stdout.read() == b""  # its daemon held the other end
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()


def test_a_signal_before_the_daemon_is_known_is_passed_on(tmp_path: Path) -> None:
    """The daemon may be up, and Spark be told of it, before the process that Spark watches knows its number."""
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        client = subprocess.Popen(
            [sys.executable, str(warm_client.__file__), sys.executable, address, "-m", "pyspark.daemon", "worker"]
        )
        daemon_process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(65536):
                    pass
                client.send_signal(signal.SIGTERM)
                connection.sendall(daemon_process.pid.to_bytes(warm_client.PID_BYTES, "big"))
                assert daemon_process.wait(20) == -signal.SIGTERM
            assert client.wait(20) == 0
        finally:
            client.kill()
            daemon_process.kill()


def test_other_commands_are_run_by_the_real_python(python: str) -> None:
    command = [python, "-c", "import sys; print(sys.executable)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == sys.executable


def test_without_the_warm_process_the_real_python_is_the_daemon(python: str, warm_folder: Path) -> None:
    deadline = time.monotonic() + 20
    while not (warm_folder / "socket").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (warm_folder / "socket").unlink()
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
    monkeypatch.setattr(gateway, "find_spec", lambda _: None)
    monkeypatch.setattr(spark_session, "_running_session", lambda: None)
    spark_session._warm_python.cache_clear()
    with pytest.raises(ConfigError, match="PySpark is not installed"):
        spark_session.get_or_create()
    assert spark_session._warm_python.cache_info().misses == 0


def test_a_warm_python_whose_folder_is_gone_ends_quietly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moldau.spark.startup.warm_python", str(tmp_path / "gone" / "socket")]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_start_that_is_interrupted_leaves_no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], _answer: Path) -> tuple[int, str]:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(gateway, "java_command", lambda *_: ["sleep", "1000"])
    monkeypatch.setattr(gateway, "_connection", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gateway.start_gateway(JAVA, {})
    try:
        assert started[0].returncode == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].communicate()


def test_connector_jvm_is_the_same_options_under_another_format() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "failOnDataLoss": False}
    ours = apply_options(Recorder(), options)  # type: ignore[type-var]
    assert (ours.name, ours.given) == ("moldau", options | {"failOnDataLoss": "false"})
    theirs = apply_options(Recorder(), options | {"Connector": "jvm"})  # type: ignore[type-var]
    assert theirs.name == "kafka"
    assert theirs.given == ours.given | {"kafka.isolation.level": "read_committed"}


def test_connector_jvm_refuses_what_it_cannot_do() -> None:
    for option in ("value.format", "commitGroupId", "TXNAPPID"):
        with pytest.raises(ConfigError, match="is unknown to connector=jvm"):
            apply_options(Recorder(), {"connector": "jvm", option: "x"})  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="cannot write exactly once"):
        apply_options(WriteRecorder(), {"connector": "jvm"})  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="connector=java: expected one of moldau, jvm"):
        apply_options(Recorder(), {"connector": "java"})  # type: ignore[type-var]
    given = {"connector": "jvm", "processing.guarantee": "at_least_once", "topic": "t"}
    assert apply_options(WriteRecorder(), given).given == {"topic": "t"}  # type: ignore[type-var]

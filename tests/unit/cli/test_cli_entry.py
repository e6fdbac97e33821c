"""The doors: every command has a help with an example, a version, exit codes, and starts without heavy imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from moldau import __version__
from moldau.cli import main as moldau_main
from moldau.cli import run_class
from moldau.cli.common import CommandParser, parse_key_values, run, topic_pattern
from moldau.cli.registry import BY_NAME, COMMANDS, MISSING, load, scripts
from moldau.client import zookeeper
from moldau.errors import ConfigError, ErrorCode, KafkaError

ZK_STOP = "zookeeper-server-stop"
OURS = [command.name for command in COMMANDS if command.name not in ("start", "stop")]


def call(argv: Sequence[str]) -> int:
    """`moldau …`, with argparse's exits as exit codes."""
    try:
        return moldau_main.main(argv)
    except SystemExit as exit_:
        return int(exit_.code or 0)


@pytest.mark.parametrize("name", OURS)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "example:" in text
    assert f"moldau {name} " in text
    assert max(len(line) for line in text.splitlines()) <= 120


@pytest.mark.parametrize("name", OURS)
def test_every_command_tells_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([name, "--version"]) == 0
    assert capsys.readouterr().out == f"moldau {__version__}\n"


NEED_NOTHING = ("dump-log", "run-class", "get-offsets", "broker-api-versions", "worker", ZK_STOP)


@pytest.mark.parametrize("name", [name for name in OURS if name not in NEED_NOTHING])
def test_a_command_without_arguments_is_wrong_usage_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.endswith(f"(see moldau {name} --help)\n")


@pytest.mark.parametrize("name", ["topics --list", "configs --describe --topic t", "get-offsets"])
def test_an_ensemble_that_does_not_answer_is_one_line_after_a_hint(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "_TIMEOUT_S", 0.1)
    assert call([*name.split(), "--zookeeper", "127.0.0.1:1"]) == 1
    hint, error = capsys.readouterr().err.splitlines()
    assert "--bootstrap-server host:9092" in hint
    assert "no ZooKeeper answered at 127.0.0.1:1" in error


def test_moldau_alone_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([]) == 2
    assert call(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name} " in text


def test_kafkas_own_names_work_behind_moldau_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["kafka-topics.sh", "--version"]) == 0
    assert call(["kafka-topics", "--version"]) == 0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("topic", "topics"),
        ("consol-consumer", "console-consumer"),
        ("status", "cluster status"),
        ("top", "cluster status"),
    ],
)
def test_a_misspelt_command_is_corrected(given: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([given]) == 2
    assert f"did you mean moldau {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        ("topics --list --bootstrap-sever x:1", "--bootstrap-server"),
        ("topics --describe --topik=t", "--topic"),
        ("console-consumer --topic t --from-beginnning", "--from-beginning"),
        ("start --data-dirr x", "--data-dir"),
    ],
)
def test_a_misspelt_option_is_corrected(argv: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(argv.split()) == 2
    assert f"(did you mean '{meant}'?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["kafka.tools.DumpLogSegments", "org.apache.kafka.tools.DumpLogSegments", "DumpLogSegments"]
)
def test_commands_are_found_by_their_java_class(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run-class", "-name", "dump", "-loggc", name, "--help"]) == 0
    assert "--print-data-log" in capsys.readouterr().out


def test_an_unknown_java_class_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_class.main(["kafka.tools.Nonsense"]) == 2
    assert "no command for class kafka.tools.Nonsense (see " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("java_class", "use"),
    [
        ("kafka.tools.ConsumerOffsetChecker", "kafka-consumer-groups --describe"),
        ("kafka.admin.PreferredReplicaLeaderElectionCommand", "kafka-leader-election"),
        ("kafka.tools.MirrorMaker", "MirrorMaker 2 of Apache Kafka"),
        ("org.apache.kafka.connect.cli.ConnectPluginPath", "docs/spark.md"),
    ],
)
def test_a_class_that_is_not_here_is_answered_with_what_to_use(
    java_class: str, use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_class.main([java_class]) == 2
    error = capsys.readouterr().err
    assert f"no command for class {java_class}: " in error
    assert use in error


@pytest.mark.parametrize("given", ["kafka-acls.sh", "kafka-acls", "acls", "connect-plugin-path.sh"])
def test_a_command_that_is_not_here_is_answered_with_what_to_use(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([given, "--list"]) == 2
    error = capsys.readouterr().err
    assert "Moldau does not have this command; " in error
    assert error.count("\n") == 1


def test_every_installed_name_leads_to_a_function_and_has_a_twin_with_sh() -> None:
    installed = scripts()
    for name, target in installed.items():
        assert callable(load(target.removeprefix("moldau.cli.entry:"))), name
    kafkas = [name for name in installed if not name.endswith(".sh") and name != "moldau"]
    assert {f"{name}.sh" for name in kafkas} == {name for name in installed if name.endswith(".sh")}
    assert {"kafka-server-start", "kafka-topics", "zookeeper-server-start", "zkServer", "kafka-acls"} <= set(kafkas)
    assert not {command.script or f"kafka-{command.name}" for command in COMMANDS} & MISSING.keys()


def test_what_is_installed_is_what_the_table_says() -> None:
    found = {each.name: each.value for each in entry_points(group="console_scripts")}
    ours = {name: value for name, value in found.items() if value.startswith("moldau.")}
    assert ours == scripts(), "the table has changed: pip install --no-deps --no-build-isolation -e ."


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("bad file"), 2, "cmd: bad file\n"),
        (KafkaError(ErrorCode.INVALID_CONFIG, "broker\nsays no"), 1, "Failed : broker says no\n"),
        (OSError(28, "No space left on device"), 1, "Failed : [Errno 28] No space left on device\n"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert run("cmd", work, prefix="Failed : ") == code
    assert capsys.readouterr().err == line


def test_ctrl_c_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert run("cmd", work) == 130
    assert capsys.readouterr().err == ""


# Runs an installed command that gets SIGINT when it imports a module: name, module, arguments.
INTERRUPTED = """\
import os, signal, sys
from importlib.metadata import EntryPoint
from moldau.cli.registry import scripts

name, module = sys.argv[1:3]
target = scripts()[name]
for loaded in [each for each in sys.modules if each.startswith("moldau")]:
    del sys.modules[loaded]

class Interrupt:
    def find_spec(self, found, *_):
        if found == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[:3] = [name]
sys.exit(EntryPoint(name, target, "console_scripts").load()())
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("moldau start --port 0", "moldau.cli.registry"),
        ("moldau start --port 0", "moldau.cli.servers.broker"),
        ("moldau start --port 0", "uvloop"),
        ("moldau start --port 0", "moldau.broker.server"),
        ("moldau start --brokers 3", "moldau.local_cluster"),
        ("kafka-server-start.sh missing.properties", "moldau.cli.servers.running"),
        ("kafka-topics --list", "moldau.cli.common"),
        ("kafka-topics.sh --list", "moldau.client.cluster"),
        ("moldau cluster status", "moldau.cli.admin.cluster"),
        ("kafka-console-consumer --topic t", "confluent_kafka"),
    ],
)
def test_ctrl_c_while_a_command_starts_ends_it_quietly(command: str, module: str, tmp_path: Path) -> None:
    name, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, name, module, *arguments],
        cwd=tmp_path, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_command_that_was_started_without_ctrl_c_keeps_it_so() -> None:
    code = (
        "import os, signal, moldau.cli.registry as registry\n"
        "from moldau.cli.entry import kafka_topics\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "registry.load = lambda _: lambda: os.kill(os.getpid(), signal.SIGINT) or 7\n"
        "raise SystemExit(kafka_topics())\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 7


def test_options_may_be_shortened_as_kafkas(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser("x", "y", "z")
    parser.add_connection(old_name="--broker-list")
    assert parser.parse_args(["--bootstrap", "a:1"]).bootstrap_server == "a:1"
    assert parser.parse_args(["--broker-list", "a:1"]).bootstrap_server == "a:1"


def test_key_values_may_hold_equal_signs_and_be_empty() -> None:
    assert parse_key_values(["a=b=c", "d=", "key.separator=="]) == {"a": "b=c", "d": "", "key.separator": "="}
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_key_values(["alone"])


def test_topic_arguments_are_regular_expressions_or_lists() -> None:
    assert topic_pattern("a.*").fullmatch("abc")
    assert topic_pattern('"orders, payments"').fullmatch("payments")
    assert not topic_pattern("orders").fullmatch("orders2")
    with pytest.raises(ConfigError, match="invalid regular expression"):
        topic_pattern("(")


def _module(name: str) -> str:
    return f"moldau.cli.{BY_NAME[name].target.split(':')[0]}"


@pytest.mark.parametrize(
    "name",
    ["topics", "configs", "get-offsets", "delete-records", "log-dirs", "groups", "consumer-groups", "share-groups",
     "transactions"],
)  # fmt: skip
def test_administrators_never_pay_for_the_record_client(name: str) -> None:
    """confluent-kafka takes 80 ms to load, the protocol classes 100: neither before it is needed."""
    script = (
        f"import sys, {_module(name)}\n"
        "assert not {'kio', 'confluent_kafka', 'rich', 'asyncio'} & sys.modules.keys()\n"
        "import moldau.client.admin\n"
        "assert 'confluent_kafka' not in sys.modules\n"
        "assert 'hypothesis' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    "name",
    ["console-producer", "console-consumer", "console-share-consumer", "producer-perf-test", "consumer-perf-test"],
)
def test_help_of_the_record_commands_is_light_too(name: str) -> None:
    script = (
        f"import sys, {_module(name)}\n"
        "assert not {'kio', 'confluent_kafka', 'rich', 'asyncio'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("module", "rooms"),
    [
        ("moldau.cli.entry", ["cli", "cli.entry"]),
        ("moldau.cli.main", ["cli", "cli.main", "cli.registry"]),
        ("moldau.testing.plugin", ["testing", "testing.plugin"]),
    ],
)
def test_what_every_command_or_every_pytest_loads_is_small(module: str, rooms: list[str]) -> None:
    """pytest loads the plugin in every project of an environment that has Moldau."""
    script = f"import sys, {module}\nprint(*sorted(name for name in sys.modules if name.startswith('moldau')))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True, text=True)
    assert loaded.stdout.split() == ["moldau", *(f"moldau.{room}" for room in rooms), "moldau.version"]


def test_a_reader_that_stops_early_is_no_error() -> None:
    script = (
        "import sys\n"
        "from moldau.cli.common import run\n"
        "def work():\n"
        "    sys.stdin.read()\n"
        "    print('a line' * 10000)\n"
        "    return 0\n"
        "sys.exit(run('x', work))\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, error = process.communicate(b"", timeout=60)
    assert (process.returncode, error) == (0, b"")


def test_a_closed_standard_output_is_no_traceback() -> None:
    code = (
        "from moldau.cli.common import print_table, run; "
        "raise SystemExit(run('x', lambda: print_table(('HEAD',), [('row',)]) or 0))"
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, code], stderr=subprocess.PIPE, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")

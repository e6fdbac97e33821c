"""Console producer and consumer: what goes in as lines comes out as lines."""

from __future__ import annotations

import json
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.integration.cli.conftest import Commands
from tests.integration.waiting import eventually

NewTopic = Callable[..., str]
PARSE = ("--property", "parse.key=true", "--property", "key.separator=:")


def _read(commands: Commands, topic: str, count: int, *args: str) -> list[str]:
    out = commands.ok("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", str(count), *args)
    return out.splitlines()


def test_lines_come_out_in_the_order_they_went_in(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "1")
    lines = [f"line {number}" for number in range(2000)]
    assert commands.ok("console-producer", "--topic", topic, stdin="\n".join(lines)) == ""
    result = commands("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "2000")
    assert result.out.splitlines() == lines
    assert result.err == "Processed a total of 2000 messages\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_makes_the_way(commands: Commands, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic("--partitions", "1")
    lines = [f"squeeze me {number}" for number in range(50)]
    commands.ok("console-producer", "--topic", topic, "--compression-codec", codec, stdin="\n".join(lines))
    assert _read(commands, topic, 50) == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_makes_the_way(commands: Commands, new_topic: NewTopic, acks: str) -> None:
    topic = new_topic("--partitions", "1")
    commands.ok("console-producer", "--topic", topic, "--request-required-acks", acks, "--sync", stdin="a\nb\n")
    assert _read(commands, topic, 2) == ["a", "b"]


def test_keys_headers_and_nulls_make_the_way(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "1")
    commands.ok(
        "console-producer", "--topic", topic, "--reader-property", "parse.key=true",
        "--reader-property", "parse.headers=true", "--reader-property", "null.marker=NULL",
        stdin="h1:v1,h2:NULL\tkey\tvalue\nNULL\tNULL\tNULL\n",
    )  # fmt: skip
    shown = ("print.key", "print.headers", "print.offset", "print.partition")
    lines = _read(commands, topic, 2, *(arg for name in shown for arg in ("--property", f"{name}=true")))
    assert lines == [
        "Partition:0\tOffset:0\th1:v1,h2:null\tkey\tvalue",
        "Partition:0\tOffset:1\tNO_HEADERS\tnull\tnull",
    ]
    first, second = (json.loads(line) for line in _read(commands, topic, 2, "--json"))
    assert (first["key"], first["value"], first["timestampType"]) == ("key", "value", "CreateTime")
    assert first["headers"] == [{"key": "h1", "value": "v1"}, {"key": "h2", "value": None}]
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)


def test_a_key_goes_to_the_partition_a_java_producer_would_choose(commands: Commands, new_topic: NewTopic) -> None:
    from kafka.partitioner import murmur2

    topic = new_topic("--partitions", "7")
    keys = [f"user-{number}" for number in range(50)]
    out = commands.ok(
        "console-producer", "--topic", topic, *PARSE, "--json", stdin="".join(f"{key}:v\n" for key in keys)
    )
    assert len(out.splitlines()) == 50
    lines = _read(commands, topic, 50, "--property", "print.partition=true", "--property", "print.key=true")
    placed = {key: int(place.removeprefix("Partition:")) for place, key, _ in (line.split("\t") for line in lines)}
    assert placed == {key: (murmur2(key.encode()) & 0x7FFFFFFF) % 7 for key in keys}


def test_reading_starts_where_it_is_told_to(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "1")
    commands.ok("console-producer", "--topic", topic, stdin="0\n1\n2\n3\n")
    at = ("console-consumer", "--topic", topic, "--partition", "0")
    assert commands.ok(*at, "--offset", "2", "--max-messages", "2").split() == ["2", "3"]
    assert commands.ok(*at, "--offset", "earliest", "--max-messages", "1").split() == ["0"]
    assert commands.ok(*at, "--from-beginning", "--max-messages", "1").split() == ["0"]
    assert commands.ok(*at, "--offset", "latest", "--timeout-ms", "2000") == ""
    missing = commands("console-consumer", "--topic", topic, "--partition", "5", "--offset", "0")
    assert missing.code == 1
    assert "has no partition 5" in missing.err


def test_reading_ends_when_nothing_comes(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "2")
    commands.ok("console-producer", "--topic", topic, stdin="a\nb\n")
    result = commands("console-consumer", "--topic", topic, "--from-beginning", "--timeout-ms", "3000")
    assert (result.code, sorted(result.out.split())) == (0, ["a", "b"])
    assert result.err == "Processed a total of 2 messages\n"


def test_topics_are_read_by_regular_expression(commands: Commands, new_topic: NewTopic) -> None:
    first, second, third = new_topic(), new_topic(), new_topic()
    for topic in (first, second, third):
        commands.ok("console-producer", "--topic", topic, stdin=f"{topic}\n")
    out = commands.ok("console-consumer", "--include", f"{first}|{second}", "--from-beginning", "--max-messages", "2")
    assert sorted(out.split()) == sorted([first, second])


def test_a_topic_is_created_by_the_first_line_sent_to_it(commands: Commands) -> None:
    topic = f"cli-{uuid.uuid4().hex[:12]}"
    commands.ok("console-producer", "--topic", topic, stdin="first\n")
    assert _read(commands, topic, 1) == ["first"]
    commands.ok("topics", "--delete", "--topic", topic)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_consumer_with_its_count(commands: Commands, new_topic: NewTopic, how: signal.Signals) -> None:
    topic = new_topic("--partitions", "1")
    commands.ok("console-producer", "--topic", topic, stdin="a\nb\n")
    with commands.start("console-consumer", "--topic", topic, "--from-beginning") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
        process.send_signal(how)
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == (b"", b"Processed a total of 2 messages\n", 0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_producer_after_everything_was_sent(
    commands: Commands, new_topic: NewTopic, how: signal.Signals
) -> None:
    topic = new_topic("--partitions", "1")
    with commands.start("console-producer", "--topic", topic, "--sync", "--json") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"typed\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["offset"] == 0
        process.send_signal(how)
        process.wait(30)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert _read(commands, topic, 1) == ["typed"]


def test_a_reader_that_has_seen_enough_ends_the_consumer(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "1")
    commands.ok("console-producer", "--topic", topic, stdin="x" * 100 + "\n" + "y\n" * 100_000)
    with commands.start("console-consumer", "--topic", topic, "--from-beginning") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read().decode()
        assert process.wait(30) == 0
    assert errors.startswith("Unable to write to standard out, closing consumer.\nProcessed a total of ")


def test_a_line_without_its_key_stops_the_producer_but_keeps_what_came_before(
    commands: Commands, new_topic: NewTopic
) -> None:
    topic = new_topic("--partitions", "1")
    result = commands("console-producer", "--topic", topic, *PARSE, stdin="k:v\nnokey\nk:w\n")
    assert result.code == 1
    assert "No key separator found on line number 2: 'nokey'" in result.err
    assert _read(commands, topic, 1, "--timeout-ms", "5000") == ["v"]


def test_a_record_that_is_too_large_is_told_and_the_rest_is_sent(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "1", "--config", "max.message.bytes=1000")
    result = commands("console-producer", "--topic", topic, "--sync", stdin="x" * 5000 + "\n")
    assert result.code == 1
    assert "Error when sending message" in result.err
    assert "too large" in result.err
    result = commands("console-producer", "--topic", topic, stdin="x" * 2_000_000 + "\nsmall\n")
    assert result.code == 1
    assert _read(commands, topic, 1) == ["small"]


def test_a_record_without_the_key_its_topic_needs_is_told_so(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--config", "cleanup.policy=compact")
    result = commands("console-producer", "--topic", topic, stdin="nokey\n")
    assert result.code == 1
    assert "cleanup.policy=compact requires records with a key" in result.err


def test_a_bad_topic_name_is_refused_before_anything_is_sent(commands: Commands) -> None:
    result = commands("console-producer", "--topic", "bad!name", stdin="a\n")
    assert result.code == 1
    assert "bad!name" in result.err


def test_a_property_librdkafka_refuses_is_wrong_usage(commands: Commands) -> None:
    result = commands("console-consumer", "--topic", "t", "--consumer-property", "fetch.min.bites=1")
    assert result.code == 2
    assert "fetch.min.bites\" (did you mean 'fetch.min.bytes'?)" in result.err


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_misses_nothing_that_came_while_it_was_away(
    commands: Commands, new_topic: NewTopic, protocol: str
) -> None:
    topic, group = new_topic("--partitions", "2"), f"g-{uuid.uuid4().hex[:8]}"
    arguments = ("--topic", topic, "--group", group, "--consumer-property", f"group.protocol={protocol}")
    with commands.start("console-consumer", *arguments) as process:

        def offsets() -> list[str]:
            lines = commands("consumer-groups", "--describe", "--group", group).out.splitlines()
            return [line.split()[3] for line in lines if topic in line]

        try:
            eventually(lambda: offsets() == ["0", "0"], "the group has its partitions")
        finally:
            process.terminate()
            assert process.communicate(timeout=30)[0] == b""
    commands.ok("console-producer", "--topic", topic, "--reader-property", "parse.key=true", stdin="a\t1\nb\t2\nc\t3\n")
    read = commands.ok("console-consumer", *arguments, "--max-messages", "3", "--timeout-ms", "9000")
    assert sorted(read.split()) == ["1", "2", "3"]


def test_a_group_goes_on_in_partitions_it_got_nothing_from_yet(commands: Commands, new_topic: NewTopic) -> None:
    topic, group = new_topic("--partitions", "2"), f"g-{uuid.uuid4().hex[:8]}"
    lines = [f"{number}\tvalue-{number}" for number in range(8)]
    commands.ok("console-producer", "--topic", topic, "--reader-property", "parse.key=true", stdin="\n".join(lines))
    arguments = ("--topic", topic, "--group", group, "--timeout-ms", "9000")
    first = commands.ok("console-consumer", *arguments, "--from-beginning", "--max-messages", "2").split()
    rest = commands.ok("console-consumer", *arguments, "--max-messages", "6").split()
    assert sorted(first + rest) == [f"value-{number}" for number in range(8)]


def test_a_topic_that_does_not_exist_is_a_warning_that_names_the_nearest(
    commands: Commands, new_topic: NewTopic
) -> None:
    topic = new_topic("--partitions", "1")
    misspelt = topic[:-1] + "_"
    read = commands("console-consumer", "--topic", misspelt, "--timeout-ms", "1")
    assert read.err.startswith(f"WARN topic '{misspelt}' does not exist (did you mean '{topic}'?); it is created if")
    written = commands("console-producer", "--topic", f"{misspelt}_", stdin="x")
    assert f"WARN topic '{misspelt}_' does not exist" in written.err
    commands.ok("topics", "--delete", "--topic", f"{misspelt}|{misspelt}_")
    described = commands("topics", "--describe", "--topic", topic[:-2])
    assert f"does not exist as expected (did you mean '{topic}'?)" in described.err


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("topics", ["--list"]),
        ("console-consumer", ["--topic", "t"]),
        ("console-consumer", ["--topic", "t", "--group", "g"]),
        ("console-producer", ["--topic", "t"]),
        ("console-share-consumer", ["--topic", "t"]),
        ("consumer-perf-test", ["--topic", "t", "--num-records", "1"]),
    ],
)
def test_a_port_that_is_not_kafkas_is_one_sentence(
    name: str, options: list[str], commands: Commands, nowhere: Commands
) -> None:
    """A wrong port names the right one where a broker of this user runs; an HTTP port is called that."""
    refused = nowhere(name, *options)
    assert (refused.code, refused.err.count("\n")) == (1, 1), refused.err
    assert "cannot connect to 127.0.0.1:1: Connection refused" in refused.err
    with http_server() as port:
        result = Commands(f"127.0.0.1:{port}")(name, *options)
    assert (result.code, result.err.count("\n")) == (1, 1), result.err
    assert f"127.0.0.1:{port} is an HTTP server, not a Kafka broker: check the port" in result.err


@contextmanager
def http_server() -> Iterator[int]:
    class Refuses(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()

"""`moldau pipeline dead-letters`: list, show, and redrive exactly once. No Spark takes part."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from moldau.cli.pipelines.dead_letters import main
from moldau.spark import connections
from moldau.spark.sink.transactions import Transactions
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.bad_records.letters import CONNECT, Record, records
from tests.integration.spark.topics import produce


class Shop:
    """A pipeline's file and its dead letters."""

    def __init__(self, bootstrap: str, folder: Path, topic: str) -> None:
        self.bootstrap, self.topic, self.letters = bootstrap, topic, f"{topic}-letters"
        self.file = str(folder / "shop.yaml")
        Path(self.file).write_text(
            f"sources:\n  clicks: {{connector: topic, topic: {topic}, format: string}}\n"
            f"sinks:\n  out: {{connector: topic, topic: {topic}-out}}\n"
            f"settings:\n  dead letters: {self.letters}\n  kafka.bootstrap.servers: {bootstrap}\n",
            "utf-8",
        )

    def letter(self, offset: int, reason: str, pipeline: str = "shop", **record: Any) -> dict[str, Any]:
        place = {"topic": self.topic, "partition": 1, "offset": offset, "exception.message": reason}
        added = [(CONNECT + name, str(value).encode()) for name, value in place.items()]
        own = record.pop("headers", [])
        letter = {"value": b"%d" % offset, "partition": 0, **record}
        return {**letter, "headers": [*own, *added, ("moldau.pipeline", pipeline.encode())]}

    def row(self, value: bytes) -> dict[str, Any]:
        headers = [(f"{CONNECT}exception.message", b"few"), ("moldau.view", b"counts"), ("moldau.pipeline", b"shop")]
        return {"value": value, "partition": 1, "headers": headers}

    def sent(self) -> list[Record]:
        return records(self.bootstrap, self.topic)


@pytest.fixture
def shop(bootstrap: str, new_topic: NewTopic, tmp_path: Path) -> Shop:
    topic = new_topic(3)
    new_topic(2, name=f"{topic}-letters")
    return Shop(bootstrap, tmp_path, topic)


def test_redrive_sends_the_records_as_they_were_and_never_twice(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [("a", b"\xff"), ("none", None), (f"{CONNECT}topic", b"the record's own")]
    produce(
        shop.bootstrap,
        shop.letters,
        [
            shop.letter(4, "bad cast", key=b"\x00k", headers=[*own, ("b", b"")], timestamp=1_700_000_000_001),
            shop.letter(5, "bad page", value=None, key=b"tombstone"),
            shop.letter(5, "bad page", value=None, key=b"tombstone"),  # of the same record
            shop.letter(6, "other", pipeline="another"),
            shop.letter(7, "bad cast", value=b""),
            shop.row(b'{"views": 2}'),
        ],
    )
    # Killed before it is decided: nothing is sent.
    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "end", _killed)
        assert main(["redrive", shop.file]) != 0
    assert shop.sent() == []
    assert main(["redrive", shop.file, "--reason", "PAGE"]) == 0
    assert [record.key for record in shop.sent()] == [b"tombstone"]
    assert main(["redrive", shop.file, "--offset", "0:0", "--offset", "0:6"]) == 0
    assert main(["redrive", shop.file, "--json"]) == 0
    assert main(["redrive", shop.file]) == 0
    out = capsys.readouterr().out
    assert "1 records sent to their topics\n1 more dead letters are of records that were sent already\n" in out
    assert '"sent": 1' in out
    assert out.endswith(
        "0 records sent to their topics\n1 are rows of steps, which have no topic to go back to: choose one with --to\n"
    )

    sent = {record.value: record for record in shop.sent()}
    assert set(sent) == {b"", b"4", None}
    assert len(shop.sent()) == 3
    assert (sent[b"4"].key, sent[b"4"].timestamp_ms) == (b"\x00k", 1_700_000_000_001)
    assert sent[b"4"].headers == [*own, ("b", b"")]
    assert sent[b""].key is None
    assert sent[None].headers == []


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_rows_of_steps_go_to_a_topic_of_choice(
    shop: Shop, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(shop.bootstrap, shop.letters, [shop.row(b"1"), shop.row(b"2")])
    other = new_topic()
    assert main(["redrive", shop.file, "--to", other, "--limit", "1"]) == 0
    assert f"1 records sent to topic {other}\n1 are left: run the command again\n" in capsys.readouterr().out
    assert main(["redrive", shop.file, "--to", other]) == 0
    assert [record.value for record in records(shop.bootstrap, other)] == [b"1", b"2"]


def test_lines_of_files_go_to_a_topic_of_choice(
    shop: Shop, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    line = shop.letter(4304, "no JSON")
    file_headers = [(key, b"/var/log/app.log" if key == f"{CONNECT}topic" else value) for key, value in line["headers"]]
    produce(shop.bootstrap, shop.letters, [{**line, "headers": file_headers}])
    assert main(["redrive", shop.file]) == 0
    assert capsys.readouterr().out == (
        "0 records sent to their topics\n1 came from a file, not from a topic: choose a topic with --to\n"
    )
    other = new_topic()
    assert main(["redrive", shop.file, "--to", other]) == 0
    assert main(["redrive", shop.file, "--to", other]) == 0
    assert [record.value for record in records(shop.bootstrap, other)] == [b"4304"]


def test_redrives_at_the_same_time_send_nothing_twice(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    count = 200
    produce(shop.bootstrap, shop.letters, [shop.letter(number, "bad cast") for number in range(count)])
    begin = Barrier(4)

    def redrive(_: int) -> int:
        begin.wait(60)
        return main(["redrive", shop.file])

    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(redrive, range(4)))
    errors = capsys.readouterr().err.splitlines()
    assert 0 in codes
    assert len(errors) == len([code for code in codes if code])
    for error in errors:
        assert error.startswith("moldau pipeline dead-letters: another redrive of pipeline shop began"), error
    assert main(["redrive", shop.file]) == 0
    assert sorted(int(record.value or 0) for record in shop.sent()) == list(range(count))


def test_list_and_show(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", shop.file]) == 0
    assert capsys.readouterr().out == f"0 dead letters in topic {shop.letters}, 0 not redriven\n"
    assert main(["show", shop.file]) == 1
    assert "has no such dead letter" in capsys.readouterr().err
    letters = [shop.letter(number, "bad cast", key=b"\xff", headers=[("a", b"b")]) for number in range(3)]
    produce(shop.bootstrap, shop.letters, [*letters, shop.row(b"{}")])
    main(["redrive", shop.file, "--limit", "1"])
    capsys.readouterr()
    assert main(["list", shop.file, "--json"]) == 0
    first = {"reason": "bad cast", "origin": shop.topic, "count": 3, "redriven": 1, "first": "0:0", "last": "0:2"}
    assert json.loads(capsys.readouterr().out)[0] == first
    assert main(["list", shop.file]) == 0
    out = capsys.readouterr().out
    assert "view counts" in out
    assert out.endswith(f"4 dead letters in topic {shop.letters}, 3 not redriven\n")
    assert main(["show", shop.file, "--offset", "0:1"]) == 0
    out = capsys.readouterr().out
    assert "dead letter 0:1" in out
    for line in ("reason     bad cast", "key        (hex) ff", "value      1", "header     a: b"):
        assert f"{line}\n" in out
    assert main(["show", shop.file, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["place"], shown["key"], shown["value"]) == ("0:1", {"base64": "/w=="}, {"text": "1"})


@pytest.mark.parametrize("action", ["list", "show", "redrive"])
def test_a_broker_that_is_away_is_told_with_its_address(
    tmp_path: Path, action: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_FIRST_CONTACT_MS_MAX", 100)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert main([action, Shop(address, tmp_path, "clicks").file]) == 1
    assert f"cannot connect to {address}" in (error := capsys.readouterr().err)
    assert connections.REACH_HINT in error

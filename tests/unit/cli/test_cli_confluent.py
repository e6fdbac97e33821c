"""Signals as a flag, errors once, and tables for people only."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from moldau.cli import common
from moldau.cli.records.assignment import Subscription
from moldau.cli.records.confluent import ErrorLines, Interruption, client_config


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_and_does_not_strike(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interruption() as interruption:
        interruption.check()
        signal.raise_signal(number)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    assert signal.getsignal(number) is before


def test_a_signal_breaks_off_what_blocks() -> None:
    with Interruption() as interruption:
        with pytest.raises(KeyboardInterrupt), interruption.breaking():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interruption.breaking():
            pytest.fail("asked before: nothing may block any more")


def test_the_second_signal_ends_the_process_there_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        raised: list[int] = []
        monkeypatch.setattr("moldau.cli.records.confluent.signal.raise_signal", raised.append)
        interruption._on_signal(signal.SIGTERM, None)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert raised == [signal.SIGTERM]


class Member:
    """A consumer with or without a coordinator, of a cluster with or without a broker."""

    def __init__(self, member_id: str | None, brokers: tuple[int, ...]) -> None:
        self.subscribed: list[str] = []
        self._member_id, self._brokers = member_id, brokers

    def subscribe(self, topics: list[str]) -> None:
        self.subscribed += topics

    def memberid(self) -> str | None:
        return self._member_id

    def list_topics(self, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(brokers=self._brokers)


@pytest.mark.parametrize(
    ("member_id", "brokers", "lines"),
    [(None, (1,), 1), ("", (1,), 1), ("console-1", (1,), 0), (None, (), 0)],
    ids=["none", "empty", "member", "nobody there"],
)
def test_a_group_without_a_coordinator_says_so_once(
    member_id: str | None, brokers: tuple[int, ...], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [0.0]
    member = Member(member_id, brokers)
    with Interruption() as interruption:
        subscription = Subscription(member, "orders", clock=lambda: times[-1])
        subscription.refresh(interruption)
        assert capsys.readouterr().err == "", "it has just begun to look"
        for now in (5.0, 6.0, 60.0):
            times.append(now)
            subscription.refresh(interruption)
    assert member.subscribed == ["orders"]
    assert capsys.readouterr().err.count("no group coordinator") == lines


class Error:
    def __init__(self, code: int, text: str) -> None:
        self._code, self._text = code, text

    def code(self) -> int:
        return self._code

    def str(self) -> str:
        return self._text


def test_a_dead_broker_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from confluent_kafka import KafkaError

    report = ErrorLines()
    for took in (0, 3, 17):
        report(
            Error(KafkaError._TRANSPORT, f"b:1: Connect failed: Connection refused (after {took}ms in state CONNECT)")
        )
        report(Error(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert capsys.readouterr().err == "WARN b:1: Connect failed: Connection refused\n"


def test_properties_without_effect_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    config = client_config({"interceptor.classes": "x", "linger.ms": "1"}, "b:1", "me")
    assert (config["bootstrap.servers"], config["client.id"], config["linger.ms"]) == ("b:1", "me", "1")
    assert capsys.readouterr().err == "WARN property interceptor.classes has no effect\n"
    assert client_config({}, None, "me")["bootstrap.servers"] == "localhost:9092"
    assert client_config({"bootstrap.servers": "c:2"}, None, "me")["bootstrap.servers"] == "c:2"


def test_tables_line_up_and_are_bold_only_at_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common.print_table(("Topic", "Offset"), [("orders", 1), ("a", 22)])
    assert capsys.readouterr().out == "Topic   Offset\norders  1\na       22\n"
    monkeypatch.setattr(common, "at_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    common.print_table(("Topic",), [])
    assert capsys.readouterr().out == "\033[1mTopic\033[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert common.bold("plain") == "plain"

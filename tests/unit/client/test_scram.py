"""SCRAM as the RFCs have it, and every way a server can cheat."""

from __future__ import annotations

import pytest

from moldau.client.scram import MESSAGE_BYTES_MAX, scram
from moldau.errors import ConfigError, KafkaError

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = f"c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_conversation_of_rfc_7677() -> None:
    client = scram("sha256", "user", "pencil", NONCE)
    assert next(client) == f"n,,n=user,r={NONCE}".encode()
    assert client.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration):
        client.send(SERVER_FINAL)


def test_the_conversation_of_rfc_5802() -> None:
    client = scram("sha1", "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL")
    next(client)
    both = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    assert client.send(both + b",s=QSXCR+Q6sek8bf92,i=4096") == b"c=biws," + both + b",p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    with pytest.raises(StopIteration):
        client.send(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


def test_every_conversation_has_a_nonce_of_its_own() -> None:
    firsts = {next(scram("sha512", "u", "p")) for _ in range(100)}
    assert len(firsts) == 100
    assert all(len(first.partition(b"r=")[2]) >= 24 for first in firsts)


def test_commas_and_equals_signs_of_a_user_name_are_escaped() -> None:
    assert next(scram("sha256", "a=b,c", "p", "x")) == b"n,,n=a=3Db=2Cc,r=x"


@pytest.mark.parametrize("name", ["jürgen", "a\0b", "line\nbreak"])
def test_a_user_name_kafka_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="ASCII"):
        next(scram("sha256", name, "p"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (SERVER_FIRST.replace(SERVER_NONCE.encode(), NONCE.encode()), "nonce"),  # nothing of its own
        (SERVER_FIRST.replace(SERVER_NONCE.encode(), NONCE[:-1].encode()), "nonce"),  # shortened
        (SERVER_FIRST.replace(b"r=rOpr", b"r=other"), "nonce"),  # replayed from another conversation
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=999999999"), "999999999 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-1"), "not a SCRAM message"),
        (SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000), "not a SCRAM message"),
        (SERVER_FIRST + b"," + b"x" * MESSAGE_BYTES_MAX, "not a SCRAM message"),
        (b"m=must-understand," + SERVER_FIRST, "not a SCRAM message"),
        (SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=W22Za"), "base64"),
        (b"", "not a SCRAM message"),
        (SERVER_FINAL, "not a SCRAM message"),
    ],
)
def test_a_bad_first_answer_never_gets_a_proof(answer: bytes, why: str) -> None:
    client = scram("sha256", "user", "pencil", NONCE)
    next(client)
    with pytest.raises(KafkaError, match=why):
        client.send(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"v=" + b"A" * 43 + b"=", "could not prove"),
        (b"v=6rri", "could not prove"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"", "not a SCRAM message"),
        (SERVER_FIRST, "not a SCRAM message"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(answer: bytes, why: str) -> None:
    client = scram("sha256", "user", "pencil", NONCE)
    next(client)
    client.send(SERVER_FIRST)
    with pytest.raises(KafkaError, match=why):
        client.send(answer)

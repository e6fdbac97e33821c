"""Ids are written as Kafka writes them."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.wire.uuids import ONE_UUID, ZERO_ID, ZERO_UUID, random_uuid, uuid_from_text, uuid_to_text


@given(st.uuids())
def test_text_survives(value: uuid.UUID) -> None:
    text = uuid_to_text(value)
    assert len(text) == 22
    assert uuid_from_text(text) == value
    assert uuid_to_text(value.bytes) == text


def test_reserved_ids_are_kafkas() -> None:
    assert uuid_to_text(ZERO_UUID) == uuid_to_text(ZERO_ID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_to_text(ONE_UUID) == "AAAAAAAAAAAAAAAAAAAAAQ"


def test_the_alphabet_is_url_safe() -> None:
    value = uuid.UUID(bytes=b"\xfb\xff" + bytes(14))
    assert uuid_to_text(value).startswith("-_")
    assert uuid_from_text(uuid_to_text(value)) == value


def test_padding_is_accepted() -> None:
    assert uuid_from_text("AAAAAAAAAAAAAAAAAAAAAQ==") == ONE_UUID


@pytest.mark.parametrize(
    "text", ["", "AAAA", "A" * 25, "A" * 23, "č" * 22, "AAAAAAAAAAAAAAAAAAAAA!", "AAAAAAAAAAA!AAAAAAAAAAQ"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"UUID|base64"):
        uuid_from_text(text)


def test_random_ids_are_never_reserved_and_never_look_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    dash = uuid.UUID(bytes=b"\xf8" + bytes(15))
    good = uuid.UUID(int=2**100)
    draws = iter([ZERO_UUID, ONE_UUID, dash, good])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(draws))
    assert uuid_to_text(dash).startswith("-")
    assert random_uuid() == good

"""The error codes are Apache Kafka's, by name and number."""

from __future__ import annotations

import re

import pytest

from moldau import errors
from moldau.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    ErrorCode,
    KafkaError,
    MoldauError,
    OffsetOutOfRangeError,
    ProtocolError,
    StorageError,
)
from moldau.wire.messages import error

KIO_ERROR_CODE = type(error(ErrorCode.NONE))


def test_error_codes_and_what_is_retriable_equal_the_protocol_packages() -> None:
    theirs = {code.name.upper(): (code.value, code.retriable) for code in KIO_ERROR_CODE}
    assert {code.name: (code.value, code.retriable) for code in ErrorCode} == theirs


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (CorruptRecordError("x"), ErrorCode.CORRUPT_MESSAGE),
        (OffsetOutOfRangeError("x"), ErrorCode.OFFSET_OUT_OF_RANGE),
        (DuplicateSequenceError(7, 9, 1), ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
        (StorageError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (KafkaError(ErrorCode.INVALID_CONFIG, "x"), ErrorCode.INVALID_CONFIG),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_answerable_error_carries_its_code(raised: KafkaError, code: ErrorCode) -> None:
    assert raised.code is code
    assert raised.message


def test_the_drawn_tree_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ((?:│   |    )*)(?:├── |└── )?(\w+Error)\b", line):
            depth = line.index(found[2]) // 4 - 1
            drawn[found[2]] = path[depth - 1] if depth else "Exception"
            path[depth:] = [found[2]]
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert drawn == {one.__name__: one.__bases__[0].__name__ for one in classes}


def test_an_error_without_words_says_its_name() -> None:
    assert KafkaError(ErrorCode.INVALID_CONFIG).message == "INVALID_CONFIG"


def test_bytes_that_are_no_message_have_no_code_to_answer() -> None:
    assert issubclass(ProtocolError, MoldauError)
    assert not issubclass(ProtocolError, KafkaError)

"""Topic, directory and cluster ids: Kafka writes a UUID as 22 characters of url-safe base64.

`uuid.UUID` in the program, 16 raw bytes in the hand-packed codecs, base64 text in files and tools.
"""

from __future__ import annotations

import binascii
import uuid
from base64 import b64decode, urlsafe_b64encode

ZERO_UUID = uuid.UUID(int=0)
ONE_UUID = uuid.UUID(int=1)  # Kafka's metadata topic
LOST_DIRECTORY = uuid.UUID(int=2)  # where a replica is whose disk does not work
ZERO_ID = bytes(16)


def uuid_to_text(value: uuid.UUID | bytes) -> str:
    raw = value.bytes if isinstance(value, uuid.UUID) else value
    return urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def uuid_from_text(text: str) -> uuid.UUID:
    """The id that `text` spells; ValueError says what is wrong with it."""
    if len(text) > 24:
        raise ValueError(f"{text[:24]!r}… is too long for a base64 UUID")
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        raw = b64decode(padded, altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r} is not url-safe base64") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} decodes to {len(raw)} bytes; a UUID has 16")
    return uuid.UUID(bytes=raw)


def random_uuid() -> uuid.UUID:
    """A random id that is neither reserved nor written with a leading "-", which tools take for an option."""
    while True:
        value = uuid.uuid4()
        if value not in (ZERO_UUID, ONE_UUID) and not uuid_to_text(value).startswith("-"):
            return value

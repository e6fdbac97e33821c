"""Record values that look like what people send: small JSON events, all different, of an exact size.

Random bytes would make every codec look useless, one repeated value would make it look perfect.
"""

from __future__ import annotations

import json
import random

WORDS = ("created", "updated", "shipped", "Praha", "Brno", "Ostrava", "web", "mobile", "store", "refund")
# Enough that a batch of librdkafka holds few repeats, few enough to stay in the CPU's cache.
VARIETY = 500


def payloads(size_bytes: int, count: int = VARIETY, seed: int = 1) -> list[bytes]:
    """`count` values of exactly `size_bytes`, the same ones for the same seed."""
    source = random.Random(seed)
    return [_payload(size_bytes, source) for _ in range(count)]


def _payload(size_bytes: int, source: random.Random) -> bytes:
    parts: list[str] = []
    length = 0
    while length < size_bytes:
        event = {
            "id": source.getrandbits(48),
            "at": 1_700_000_000_000 + source.getrandbits(32),
            "kind": source.choice(WORDS),
            "amount": round(source.random() * 1000, 2),
            "place": source.choice(WORDS),
        }
        parts.append(json.dumps(event))
        length += len(parts[-1])
    return "".join(parts).encode()[:size_bytes]

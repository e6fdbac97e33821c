"""Input for every example of a pipeline, from a seed: rows in the order of their event times, five seconds apart.

What comes out does not depend on where micro-batches end: no row is late, however partitions are read in turns, and
nobody returns after having been away for long. `LAST` comes when all else has been read, and closes all windows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

ROWS = 240
LAST = "2200-01-01T00:00:00Z"
NOT_JSON = "{not JSON"
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_PAGES = ("/", "/cart", "/help", "/search", "/about")

Row = dict[str, Any] | str
Rows = Callable[[random.Random], Iterator[Row]]


def _at(number: float) -> str:
    return (_BEGIN + timedelta(seconds=5 * number)).isoformat()


def _who(draw: random.Random, number: int) -> str:
    """A few at a time, for five minutes each."""
    return f"{number // 60}-{draw.randrange(3)}"


def _each(make: Callable[[random.Random, int], Row]) -> Rows:
    return lambda draw: (make(draw, number) for number in range(ROWS))


def _payments(draw: random.Random) -> Iterator[Row]:
    """A third is sent again a little later."""
    again: list[Row] = []
    for number in range(ROWS):
        payment: Row = {"id": f"p{number}", "amount": draw.randrange(1000) / 100, "at": _at(number)}
        yield payment
        if draw.random() < 0.3:
            again.append(payment)
        if again and draw.random() < 0.3:
            yield again.pop()


def _clicked(draw: random.Random) -> Iterator[Row]:
    """A half of the advertisements, up to 12 minutes after they were shown: some of them too late."""
    clicks = [(number + draw.randrange(144), number) for number in range(ROWS) if draw.random() < 0.5]
    return ({"ad": f"ad{number}", "clicked_at": _at(moment)} for moment, number in sorted(clicks))


def _temperature(draw: random.Random, number: int) -> Row:
    if draw.random() < 0.05:
        return NOT_JSON
    return {"sensor": f"s{draw.randrange(5)}", "fahrenheit": draw.choice([20, 68.5, 104, -500]), "at": _at(number)}


def _order(draw: random.Random, number: int) -> Row:
    lines = [
        {"product": f"product {draw.randrange(9)}", "quantity": draw.randrange(1, 5), "price": 2.5}
        for _ in range(draw.randrange(4))
    ]
    return {"id": number, "customer": f"c{draw.randrange(9)}", "lines": lines}


# By example and source.
INPUTS: dict[tuple[str, str], Rows] = {
    ("alerts", "readings"): _each(
        lambda draw, _: {"machine": f"m{draw.randrange(9)}", "celsius": draw.randrange(60, 120)}
    ),
    ("deduplicate", "payments"): _payments,
    ("explode", "orders"): _each(_order),
    ("filter", "logs"): _each(
        lambda draw, number: {
            "level": draw.choice(["INFO", "ERROR"]),
            "service": draw.choice(["shop", "health"]),
            "message": f"message {number}",
        }
    ),
    ("last-value", "positions"): _each(
        lambda draw, number: {
            "vehicle": f"v{draw.randrange(9)}",
            "place": draw.choice(["Praha", "Beroun", "sold"]),
            "at": _at(number),
        }
    ),
    ("map", "readings"): _each(_temperature),
    ("session-windows", "clicks"): _each(
        lambda draw, number: {"user": _who(draw, number), "page": draw.choice(_PAGES), "at": _at(number)}
    ),
    ("sliding-windows", "requests"): _each(
        lambda draw, number: {
            "service": draw.choice(["shop", "search"]),
            "took_ms": draw.randrange(500),
            "at": _at(number),
        }
    ),
    ("stateful-python", "reports"): _each(
        lambda draw, number: {"device": _who(draw, number), "battery": draw.randrange(100), "at": _at(number)}
    ),
    ("stream-stream-join", "shown"): _each(lambda _, number: {"ad": f"ad{number}", "shown_at": _at(number)}),
    ("stream-stream-join", "clicked"): _clicked,
    ("stream-table-join", "orders"): _each(
        lambda draw, number: {"id": number, "customer": draw.randrange(12), "amount": draw.randrange(1000) / 100}
    ),
    ("stream-table-join", "customer_records"): lambda draw: (
        {"id": number % 10, "name": f"name {number}", "country": draw.choice(["CZ", "DE", "AT"])}
        for number in range(20)
    ),
    ("top-n", "clicks"): _each(lambda draw, number: {"page": draw.choice(_PAGES), "at": _at(number)}),
    ("tumbling-windows", "clicks"): _each(lambda draw, number: {"page": draw.choice(_PAGES), "at": _at(number)}),
    ("website-activity", "views"): _each(lambda draw, number: {"page": draw.choice(_PAGES), "at": _at(number)}),
}

"""Checks the brackets of JSON values byte by byte."""

from __future__ import annotations

from moldau.spark.columns.jit import address_of, byte_at, kernel
from moldau.spark.columns.kernels import Bytes, Int32s

_QUOTE, _BACKSLASH, _OPENING, _CLOSING = b'"\\[]'
_ANY_BRACKET = 0xDF  # without the bit in which "{" differs from "["


@kernel("i8(Array(u1, 1, 'C', readonly=True), Array(i4, 1, 'C', readonly=True))")
def first_unopened(data: Bytes, bounds: Int32s) -> int:
    """Return the first row that closes a bracket it did not open, which could end its line early; -1 if none does."""
    address = address_of(data)
    for row in range(len(bounds) - 1):
        depth = least = quoted = escaped = 0
        # There is no branch per byte: it would be mispredicted at every quote and take twice as long.
        for at in range(address + bounds[row], address + bounds[row + 1]):
            byte = byte_at(at)
            quoted ^= (byte == _QUOTE) & (1 - escaped)
            escaped = (byte == _BACKSLASH) & (1 - escaped)
            kind = byte & _ANY_BRACKET
            depth += ((kind == _OPENING) * 1 - (kind == _CLOSING) * 1) * (1 - quoted)
            least = min(least, depth)
        if least < 0:
            return row
    return -1

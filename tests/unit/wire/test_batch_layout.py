"""The offsets of the layout are those of the struct that reads a whole header."""

from __future__ import annotations

import struct

from moldau.wire import batch_layout as layout
from moldau.wire.batch import BatchHeader, read_header


def test_each_field_lies_where_the_layout_says() -> None:
    formats = dict(zip(BatchHeader._fields, layout.HEADER.format.removeprefix(">"), strict=True))
    header = BatchHeader(*range(1, len(formats) + 1))
    data = layout.HEADER.pack(*header)
    for name, code in formats.items():
        position = getattr(layout, f"{name.upper()}_AT")
        assert struct.unpack_from(f">{code}", data, position) == (getattr(header, name),), name
    assert read_header(data) == header
    assert layout.HEADER.size == layout.HEADER_SIZE
    assert layout.BEFORE_CRC.size == layout.ATTRIBUTES_AT
    assert layout.HOP.unpack_from(data) == (header.base_offset, header.length, header.last_offset_delta)

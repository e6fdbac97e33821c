"""Every message that is not hot, by way of `kio`'s generated schemas: frames and headers around its entities.

`kio` is imported here and nowhere else, for its classes and its writers; what comes from outside is read by
`entity_reader`. Produce and Fetch on a broker have hand-packed codecs of their own (`produce`, `fetch`);
record batches are in `batch`.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import APIS, ApiKey, request_header_version, response_header_version
from moldau.wire.entity_reader import Reader, entity_reader, entries_bounded
from moldau.wire.primitives import MALFORMED, new_tuple, skip_tags, write_string


class _Kio(NamedTuple):
    index: Any
    serial: Any
    errors: Any
    schema: Any


@cache
def _kio() -> _Kio:
    """kio's modules, imported when the first message needs them: they are a third of a broker's start."""
    # Where hypothesis is installed, kio imports it to register test strategies, and that alone takes seconds.
    # A None in sys.modules makes that import fail, which kio allows for.
    hide = "hypothesis" not in sys.modules
    if hide:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        return _Kio(
            importlib.import_module("kio.index"),
            importlib.import_module("kio.serial"),
            importlib.import_module("kio.schema.errors"),
            importlib.import_module("kio.schema.index"),
        )
    finally:
        if hide:
            sys.modules.pop("hypothesis", None)


_REQUEST_HEADER = struct.Struct(">hhih")
_FRAME_START = struct.Struct(">ii")
_INT32 = struct.Struct(">i")

# By key, the first version with a version 2 request header; versions are 16-bit, so 1 << 15 is never.
_FLEXIBLE_VERSION_MIN = {key: 1 << 15 if api.flexible_from is None else api.flexible_from for key, api in APIS.items()}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def parse_request_header(frame: memoryview | bytes) -> RequestHeader:
    """The header of a request frame (without its four size bytes); the body starts at `body_offset`.

    A known API in an unknown version still gets a header: ApiVersions must be answered in any version.
    """
    try:
        api_key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
        flexible_from = _FLEXIBLE_VERSION_MIN.get(api_key)
        if flexible_from is None:
            raise ProtocolError(f"unknown API key {api_key}")
        pos = 10
        client_id = None
        if length >= 0:
            pos += length
            if pos > len(frame):
                raise ProtocolError(f"client id of {length} bytes runs past the end of the frame")
            client_id = str(frame[10:pos], "utf-8")
        elif length != -1:
            raise ProtocolError(f"client id of {length} bytes")
        if version >= flexible_from:
            pos = pos + 1 if frame[pos] == 0 else skip_tags(memoryview(frame), pos)
    except MALFORMED as error:
        raise ProtocolError(f"bad request header: {error}") from error
    return new_tuple(RequestHeader, (api_key, version, correlation_id, client_id, pos))


def decode_request(api_key: int, version: int, body: bytes | memoryview, entries_max: int = sys.maxsize) -> Any:
    """The kio entity of a request body; raises ProtocolError for bytes that are no such request, or have too many
    entries in all its arrays together."""
    # librdkafka asks for all topics, from Metadata 9 on, with three bytes too many; Kafka never looks at them.
    leftover = 3 if api_key == ApiKey.METADATA and version >= 9 else 0
    with entries_bounded(entries_max):
        return _decode(_request_reader(api_key, version), body, 0, leftover)


def has_more_entries(entity: Any, count: int) -> bool:
    """Whether the arrays of a message, and those in their entries, have more than `count` entries in all."""
    fields = getattr(entity, "__dataclass_fields__", ())
    arrays = [value for name in fields if isinstance(value := getattr(entity, name), tuple)]
    for array in arrays:
        count -= len(array)
        if count < 0:
            return True
        for entry in array:
            fields = getattr(entry, "__dataclass_fields__", None)
            if fields is None:
                break  # numbers, or texts
            arrays += [value for name in fields if isinstance(value := getattr(entry, name), tuple)]
    return False


def encode_response(correlation_id: int, entity: Any) -> bytes:
    """A whole response frame, size first."""
    key, version = entity.__api_key__, entity.__version__
    buffer = io.BytesIO()
    header_tags = b"\0" if response_header_version(key, version) == 1 else b""
    buffer.write(bytes(8) + header_tags)
    write: Any = _writer(entity.__class__)
    write(buffer, entity)
    return _framed(buffer, correlation_id)


def encode_request(correlation_id: int, client_id: str | None, entity: Any) -> bytes:
    """A whole request frame, size first."""
    key, version = entity.__api_key__, entity.__version__
    buffer = io.BytesIO()
    buffer.write(request_head(key, version, correlation_id, client_id, 0))
    write: Any = _writer(entity.__class__)
    write(buffer, entity)
    frame = buffer.getbuffer()
    _INT32.pack_into(frame, 0, len(frame) - 4)
    return bytes(frame)


def request_head(api_key: int, version: int, correlation_id: int, client_id: str | None, body_size: int) -> bytes:
    """The size and header of a request whose body of `body_size` bytes follows."""
    header = struct.pack(">hhi", api_key, version, correlation_id) + write_string(client_id)
    if request_header_version(api_key, version) == 2:
        header += b"\0"
    return _INT32.pack(len(header) + body_size) + header


def decode_response(api_key: int, version: int, frame: bytes | memoryview) -> tuple[int, Any]:
    """The correlation id and the entity of a response frame (without its four size bytes)."""
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        pos = 4
        if response_header_version(api_key, version) == 1:
            pos = skip_tags(memoryview(frame), pos)
    except MALFORMED as error:
        raise ProtocolError(f"bad response header: {error}") from error
    return correlation_id, _decode(_response_reader(api_key, version), frame, pos)


class Schema:
    """The classes of one message in one version, as constructors that forgive fields of other versions.

    `schema.MetadataResponse(...)` builds kio's class of that name; a field that exists only in other versions
    of the message is dropped, so a handler names every field once and serves all versions. A field that no
    version has is a TypeError: it is a slip of the pen.
    """

    def __init__(self, module: Any, other_versions: Callable[[], list[Any]]) -> None:
        self._module = module
        self._other_versions = other_versions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not hasattr(self._module, name):
            raise AttributeError(f"{self._module.__name__} has no {name}")
        build = self._constructor(name, getattr(self._module, name))
        setattr(self, name, build)
        return build

    def _constructor(self, name: str, cls: Any) -> Callable[..., Any]:
        known = frozenset(field.name for field in dataclasses.fields(cls))
        foreign: set[str] = set()

        def build(**values: Any) -> Any:
            if not values.keys() <= known:
                for field in values.keys() - known - foreign:
                    self._require_known_elsewhere(name, field)
                    foreign.add(field)
                values = {field: value for field, value in values.items() if field in known}
            return cls(**values)

        return build

    def _require_known_elsewhere(self, name: str, field: str) -> None:
        for module in self._other_versions():
            cls = getattr(module, name, None)
            if cls is not None and any(field == known.name for known in dataclasses.fields(cls)):
                return
        raise TypeError(f"no version of {name} has a field {field!r}")


@cache
def request_schema(api_key: int, version: int) -> Schema:
    return _schema(api_key, version, "request")


@cache
def response_schema(api_key: int, version: int) -> Schema:
    return _schema(api_key, version, "response")


def error(code: ErrorCode | int) -> Any:
    """kio's error enum for one of ours, as its entities hold when they are read back."""
    return _kio().errors.ErrorCode(int(code))


def ms(milliseconds: int) -> datetime.timedelta:
    """kio holds durations as timedeltas."""
    return datetime.timedelta(milliseconds=milliseconds)


def _schema(api_key: int, version: int, kind: str) -> Schema:
    def module_of(other: int) -> Any:
        return importlib.import_module(f"kio.schema.{name}.v{other}.{kind}")

    def other_versions() -> Any:
        # Newest first, and lazily: it has nearly every field, and loading a schema takes milliseconds.
        return (module_of(other) for other in sorted(names.schema_name_map[name], reverse=True))

    names = _kio().schema
    if api_key not in names.api_key_map:
        raise ProtocolError(f"unknown API key {api_key}")
    name = names.api_key_map[api_key]
    if version not in names.schema_name_map[name]:
        raise ProtocolError(f"{name} has no version {version}")
    return Schema(module_of(version), other_versions)


@cache
def _request_reader(api_key: int, version: int) -> Reader:
    return _reader(_kio().index.load_request_schema, api_key, version)


@cache
def _response_reader(api_key: int, version: int) -> Reader:
    return _reader(_kio().index.load_response_schema, api_key, version)


def _reader(load: Any, api_key: int, version: int) -> Reader:
    try:
        return entity_reader(load(api_key, version))
    except _kio().index.KioIndexError as error:
        raise ProtocolError(str(error)) from error


def _decode(read: Reader, body: bytes | memoryview, pos: int, leftover: int = 0) -> Any:
    try:
        entity, end = read(memoryview(body), pos)
    except (*MALFORMED, OverflowError) as error:  # the latter: a duration beyond what Python can hold
        raise ProtocolError(f"malformed message: {error}") from error
    if len(body) - end not in (0, leftover):
        raise ProtocolError(f"{len(body) - end} bytes left over after the message")
    return entity


@cache
def _writer(entity_type: Any) -> Any:
    return _kio().serial.entity_writer(entity_type)


def _framed(buffer: io.BytesIO, correlation_id: int) -> bytes:
    with buffer.getbuffer() as frame:
        _FRAME_START.pack_into(frame, 0, len(frame) - 4, correlation_id)
    return buffer.getvalue()

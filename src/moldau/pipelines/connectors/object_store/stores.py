"""Opens an object store, and puts whole objects into it.

An object appears with all of its content or not at all. Arrow completes an upload when its stream is closed, and closes
it after an error, too. So content is encoded first, to a temporary file, and uploaded by a single call, which no
exception of Python's can interrupt.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from moldau.errors import MoldauError

S3_SCHEMES = ("s3", "s3a")


@dataclass(frozen=True)
class Store:
    url: str  # s3://bucket/prefix, gs://bucket/prefix, file:///path or an absolute path
    region: str | None = None
    endpoint: str | None = None  # http://host:port
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    is_path_style: bool | None = None

    def opened(self) -> tuple[Any, str]:
        """The file system, and the path of the prefix in it."""
        return _opened(self)

    def path(self, name: str) -> str:
        return f"{self.opened()[1]}/{name}"


@lru_cache(maxsize=16)  # connections are used again by the next task of the process
def _opened(store: Store) -> tuple[Any, str]:
    scheme = urlsplit(store.url).scheme
    with reaching(store):
        if not scheme:
            return pafs.LocalFileSystem(), store.url.rstrip("/")
        if scheme not in S3_SCHEMES:
            files, path = pafs.FileSystem.from_uri(store.url)
            return files, path.rstrip("/")
        path = store.url.partition("://")[2].strip("/")
        return pafs.S3FileSystem(**_s3_options(store, path.partition("/")[0])), path


def _s3_options(store: Store, bucket: str) -> dict[str, Any]:
    options: dict[str, Any] = {"allow_delayed_open": True}  # a small object is one request
    if store.access_key is not None:
        options |= {"access_key": store.access_key, "secret_key": store.secret_key}
    if store.endpoint:
        scheme, _, host = store.endpoint.rpartition("://")
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
        options["force_virtual_addressing"] = store.is_path_style is False
    # Servers with an address of their own rarely care for the region, but a request is signed for one.
    options["region"] = store.region or ("us-east-1" if store.endpoint else pafs.resolve_s3_region(bucket))
    return options


@contextmanager
def reaching(store: Store) -> Iterator[None]:
    """Errors of the store as a sentence that names it."""
    try:
        yield
    except OSError as error:
        where = f"{store.url} at {store.endpoint}" if store.endpoint else store.url
        raise MoldauError(f"{where}: {' '.join(str(error).split())}") from error


def require_bucket(store: Store) -> None:
    """A local folder is created when it is written to; a bucket has to be there."""
    files, path = store.opened()
    if isinstance(files, pafs.LocalFileSystem):
        return
    bucket = path.partition("/")[0]
    with reaching(store):
        if files.get_file_info(bucket).type == pafs.FileType.NotFound:
            raise MoldauError(f"{store.url}: there is no bucket {bucket}: create it, or correct the url or `store url`")


def put(store: Store, name: str, content: BinaryIO) -> None:
    """A file with its content, as one object; one of this name is replaced."""
    files, _ = store.opened()
    path = store.path(name)
    content.flush()
    size = os.fstat(content.fileno()).st_size
    whole = mmap.mmap(content.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    with reaching(store):
        if not isinstance(files, pafs.LocalFileSystem):
            _write(files, path, whole)
            return
        folder, _, last = path.rpartition("/")
        draft = f"{folder}/.{last}.{os.getpid()}"
        files.create_dir(folder, recursive=True)
        _write(files, draft, whole)
        files.move(draft, path)


def _write(files: Any, path: str, content: mmap.mmap | bytes) -> None:
    with files.open_output_stream(path, compression=None) as stream:  # else `.gz` would be compressed once more
        stream.write(content)

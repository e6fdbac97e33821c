"""An S3 server in this process: moto's, over real HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.fs as pafs
from moto.server import ThreadedMotoServer

ACCESS_KEY, SECRET_KEY = "key-of-a-test", "secret-of-a-test"


class ObjectServer:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._files = pafs.S3FileSystem(
            endpoint_override=endpoint.removeprefix("http://"),
            scheme="http",
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            region="us-east-1",
            allow_bucket_creation=True,
        )
        self._files.create_dir("bucket")

    @property
    def options(self) -> dict[str, Any]:
        """How the connector `s3` finds it."""
        return {"store url": self.endpoint, "access key": ACCESS_KEY, "secret key": SECRET_KEY}

    def names(self, prefix: str) -> list[str]:
        """Of all objects below `bucket/<prefix>`, without it."""
        root = f"bucket/{prefix}"
        infos = self._files.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(info.path[len(root) :].lstrip("/") for info in infos if info.type == pafs.FileType.File)

    def objects(self, prefix: str) -> dict[str, bytes]:
        """What any reader finds there."""
        return {
            name: self.read(f"bucket/{prefix}/{name}" if prefix else f"bucket/{name}") for name in self.names(prefix)
        }

    def read(self, path: str) -> bytes:
        with self._files.open_input_file(path) as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        with self._files.open_output_stream(f"bucket/{name}", compression=None) as stream:
            stream.write(content)


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it prints each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield ObjectServer(f"http://{host}:{port}")
    finally:
        server.stop()

"""The HTTP server of the REST interface: uvicorn in a thread, on a socket that is bound when the worker is made."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import Any

from moldau.errors import ConfigError
from moldau.pipelines.worker.config import WorkerConfig
from moldau.pipelines.worker.herder import Herder

_END_S = 10


class RestServer:
    def __init__(self, config: WorkerConfig, herder: Herder) -> None:
        listener = config.listener
        self._passwords = _passwords(config)
        self._tls = config.tls_files() if listener.is_tls else {}
        self._herder = herder
        self._socket = _bound(listener.host, listener.port)
        self.url = config.advertised(replace(listener, port=self._socket.getsockname()[1]))
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        import uvicorn

        from moldau.pipelines.worker.rest import application

        more: dict[str, Any] = {**self._tls}
        app = application(self._herder, self._passwords)
        settings = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", server_header=False, **more)
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="moldau-worker-rest", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_END_S)
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def _passwords(config: WorkerConfig) -> dict[str, str] | None:
    """Of the lines user:password of a file; None: none are needed."""
    path = config.passwords_file
    if path is None:
        return None
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"rest.basic.auth.file: cannot read {path}: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, password = line.strip().partition(":")
        if not (colon and user and password):
            raise ConfigError(f"{path}:{number}: expected user:password")
        found[user] = password
    if not found:
        raise ConfigError(f"rest.basic.auth.file: {path} has no line user:password")
    return found

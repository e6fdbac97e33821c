"""A real broker in your process: `with Broker() as broker: …`.

It runs on an event loop in its own thread, on a free port of 127.0.0.1, with its data in a temporary directory that is
removed at the end, or in a directory of yours. Several brokers can run at the same time.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from moldau.broker.loop import new_event_loop
from moldau.broker.server import Server
from moldau.config.broker import BrokerConfig
from moldau.config.properties import as_property
from moldau.errors import ConfigError, MoldauError
from moldau.startable import Startable


class Broker(Startable):
    """A broker in this process.

    `config` takes Kafka's server properties: `Broker({"num.partitions": 3, "auto.create.topics.enable": False})`.
    `port` 0 means any free port. Without `data_dir` a temporary directory is used and removed at the end.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: str | Path | None = None,
    ) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise TypeError(f"config: expected a mapping of Kafka's server properties, got {type(config).__name__}")
        self._given = {str(key): as_property(value) for key, value in (config or {}).items()}
        if "listeners" in self._given and (port or host != "127.0.0.1"):
            raise ConfigError("listeners: set either this property or host and port")
        if data_dir is not None and self._given.keys() & {"log.dirs", "log.dir"}:
            raise ConfigError("log.dirs: set either this property or data_dir")
        self._host = host
        self._port = port
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, for any Kafka client."""
        server = self._running()
        return ",".join(f"{_bracketed(host)}:{port}" for host, port in server.bound.values())

    @property
    def port(self) -> int:
        return next(iter(self._running().bound.values()))[1]

    @property
    def data_dir(self) -> Path:
        return Path(self._running().config.log_dirs[0])

    def start(self) -> Self:
        """Return when the broker is ready."""
        if self._thread is not None:
            raise MoldauError("this broker is already running")
        config = self._make_config()
        ready = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(config, ready), name="moldau-broker", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self.stop()
        return self

    def stop(self) -> None:
        """Stop cleanly: send pending responses and flush the logs. A second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()
        self._server = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # -- inside

    def _running(self) -> Server:
        if self._server is None:
            raise MoldauError("this broker is not running: use it in a `with` block, or call start() first")
        return self._server

    def _make_config(self) -> BrokerConfig:
        if self._data_dir is None and "log.dirs" not in self._given and "log.dir" not in self._given:
            self._temporary = tempfile.TemporaryDirectory(prefix="moldau-")
        folder = self._data_dir or (Path(self._temporary.name) if self._temporary else None)
        properties = {"listeners": f"PLAINTEXT://{_bracketed(self._host)}:{self._port}", **self._given}
        if folder is not None:
            properties["log.dirs"] = str(folder)
        # A warning in the log of a test goes unseen: a misspelt key has to be an error.
        config, notes = BrokerConfig.from_properties(properties, strict=True)
        for note in notes:
            warnings.warn(note, stacklevel=4)
        return config

    def _run(self, config: BrokerConfig, ready: threading.Event) -> None:
        self._loop = loop = new_event_loop()
        try:
            loop.run_until_complete(self._serve(config, ready))
        except BaseException as error:
            self._failure = error
        finally:
            loop.close()
            ready.set()

    async def _serve(self, config: BrokerConfig, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        server = Server(config)
        try:
            await server.start()
            self._server = server
            ready.set()
            await self._stop.wait()
        finally:
            await server.stop()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

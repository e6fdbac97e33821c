"""Processes of an application, each on a host of its own with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import linecache
import logging
import signal
import traceback
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from moldau.errors import SimulationError
from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import SimulatedLoop, World

if TYPE_CHECKING:
    from moldau.testing.simulation.network import Network

asyncio_logger = logging.getLogger("asyncio")
UNAWAITED = ", and nobody awaited it"

T = TypeVar("T")
Main = Callable[[], Awaitable[object]]


class ApplicationLoop(SimulatedLoop):
    """The loop of a process whose code knows nothing of the simulation."""

    _count = 0

    def __init__(self, world: World, host: Host, network: Network) -> None:
        super().__init__(world, host, network)
        self.tasks: weakref.WeakSet[_Task[Any]] = weakref.WeakSet()

    def unawaited(self) -> list[_Task[Any]]:
        """Tasks that ended with an exception, which nobody has looked at."""
        failed = [task for task in self.tasks if task.done() and task._log_traceback]
        return sorted(failed, key=hash)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """As asyncio does, it logs the error; with the line, as the timeline has no traceback."""
        error, text = context.get("exception"), str(context.get("message"))
        if self.is_dead:
            return
        if error is not None:
            is_task = text.endswith("was never retrieved")
            text = f"a task ended with {said(error)}{UNAWAITED}" if is_task else f"{text}: {said(error)}"
        before, self.world.current = self.world.current, self.host  # a task may be collected after its turn
        try:
            asyncio_logger.error("%s", text, exc_info=error)
        finally:
            self.world.current = before

    def number(self) -> int:
        self._count += 1
        return self._count

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        if self._task_factory is not None:
            return super().create_task(coro, name=name, context=context)
        return _Task(self, coro, name or f"Task-{self._count + 1}", context)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if options.get("ssl"):
            raise SimulationError("TLS is not simulated: connect with security_protocol='PLAINTEXT'")
        if host is None:
            raise SimulationError("only connections to a host and a port are simulated, not existing sockets")
        return await super().create_connection(protocol_factory, host, port)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._signal_handlers = {**self._signal_handlers, sig: (callback, args)}

    def remove_signal_handler(self, sig: int) -> bool:
        handlers = dict(self._signal_handlers)
        known = handlers.pop(sig, None) is not None
        self._signal_handlers = handlers
        return known

    _signal_handlers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}  # noqa: RUF012 - never changed

    def deliver(self, sig: int) -> bool:
        """Whether the process handles that signal."""
        handler = self._signal_handlers.get(sig)
        if handler is not None:
            self.call_soon(handler[0], *handler[1])
        return handler is not None


def _not_simulated(name: str) -> Callable[..., NoReturn]:
    def method(self: ApplicationLoop, *_: Any, **__: Any) -> NoReturn:
        raise SimulationError(
            f"{self.host.name} called loop.{name}(), which is not simulated. A simulated process has timers, tasks,"
            " and TCP connections by host name (asyncio.open_connection, asyncio.start_server)"
        )

    return method


for _name in (
    *("add_reader", "add_writer", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("create_datagram_endpoint", "create_unix_connection", "create_unix_server", "sendfile", "sock_accept"),
    *(
        "sock_connect",
        "sock_recv",
        "sock_recv_into",
        "sock_sendall",
        "start_tls",
        "subprocess_exec",
        "subprocess_shell",
    ),
):
    setattr(ApplicationLoop, _name, _not_simulated(_name))


class _Future(asyncio.Future[Any]):
    """Its hash is its number: with addresses as hashes, a set of futures would have another order in each run."""

    def __init__(self, loop: ApplicationLoop) -> None:
        self._number = loop.number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    """As `_Future`."""

    def __init__(
        self,
        loop: ApplicationLoop,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        name: str,
        context: contextvars.Context | None,
    ) -> None:
        self._number = loop.number()
        super().__init__(coro, loop=loop, name=name, context=context)
        self.ended_us: int | None = None
        loop.tasks.add(self)
        self.add_done_callback(_remember_the_time)

    def __hash__(self) -> int:
        return self._number


def _remember_the_time(task: Any) -> None:
    task.ended_us = task.get_loop().world.now_us


def said(error: BaseException) -> str:
    """Its type, its text, and the line of the application that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [frame for frame in frames if not _is_installed(frame[0])] or frames
    return text + "".join(f" ({Path(path).name}:{line} in {function})" for path, line, function in own[-1:])


class ApplicationHost(Host):
    loop_type = ApplicationLoop


class Process:
    """A process of the application. Its `main` runs from the beginning each time the process starts."""

    def __init__(self, host: ApplicationHost, main: Main) -> None:
        self.host = host
        self.name = host.name
        self._main = main
        self._task: asyncio.Task[object] | None = None

    def __repr__(self) -> str:
        return f"<process {self.name}, {'running' if self.is_running else 'ended'}>"

    @property
    def is_running(self) -> bool:
        """Whether `main` has begun and neither ended nor been killed."""
        return self.host.loop is not None

    def start(self) -> None:
        if self.host.loop is not None:
            raise SimulationError(f"process {self.name} is already running")
        self.host.world.note(self.name, "starts")
        self._task = self.host.start_process().create_task(self._run())

    async def _run(self) -> object:
        try:
            coroutine = self._main()
            if not inspect.isawaitable(coroutine):
                raise SimulationError(
                    f"process {self.name}: expected an async function, but {self._main!r} is not async"
                )
            result = await coroutine
        except Exception as error:
            error.add_note(f"It ended the simulated process {self.name!r}.")
            self.host.world.fail(error)
            raise
        self.host.world.note(self.name, "ends")
        self.host.loop.call_soon(self.host.exited)  # type: ignore[union-attr]
        return result

    def kill(self) -> None:
        """As `kill -9`: nothing of it runs any more, and the kernel closes its sockets."""
        self.host.world.note(self.name, "is killed")
        self.host.kill()

    def stop(self) -> None:
        """As SIGTERM: calls the handler from `loop.add_signal_handler`; without one, the process ends at once."""
        self.host.world.note(self.name, "gets SIGTERM")
        loop = self.host.loop
        if isinstance(loop, ApplicationLoop) and not loop.deliver(signal.SIGTERM):
            self.host.kill()

    def lose_power(self) -> None:
        """As `kill`, but nobody is told: its connections stay open at the other end."""
        self.host.world.note(self.name, "loses power")
        self.host.lose_power()

    def pause(self) -> None:
        """As SIGSTOP, or a very long garbage collection."""
        self.host.world.note(self.name, "is paused")
        self.host.pause()

    def resume(self) -> None:
        self.host.world.note(self.name, "is resumed")
        self.host.resume()

    def waits_at(self) -> str:
        """The line of its code that it waits in."""
        if self._task is None or not self.is_running:
            return f"{self.name} has ended"
        frames = list(_frames(self._task.get_coro()))
        own = [frame for frame in frames if not _is_installed(frame[0])] or frames
        if not own:
            return f"{self.name} has not begun"
        path, line, function = own[-1]
        return f"{self.name} waits at {Path(path).name}:{line} in {function}: {linecache.getline(path, line).strip()}"


def _frames(coroutine: Any) -> Iterator[tuple[str, int, str]]:
    """Where a coroutine is, and those that it awaits, outermost first."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        coroutine = coroutine.cr_await


_LIBRARY = Path(asyncio.__file__).parent.parent
_OWN = Path(__file__).parent


def _is_installed(path: str) -> bool:
    return "site-packages" in path or Path(path).is_relative_to(_LIBRARY) or Path(path).is_relative_to(_OWN)

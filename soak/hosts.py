"""Hosts with addresses of their own on one machine: network namespaces, with a router between them that drops packets.

    with Hosts(3) as hosts, hosts.clients():     # this thread, and threads it starts, are on the clients' host
        hosts.spawn(1, ["python", "-m", ...])    # a process on host 1, at hosts.address(1)
        hosts.cut(1)                             # no packet to or from host 1 arrives, and nobody is told
        hosts.drop(1, 2)                         # what host 1 sends to host 2 is lost; not the other direction
        hosts.heal()

A proxy can only hold bytes back: it still accepts connections. Here a connection attempt gets no answer at all, as from
a machine that lost its power. The namespaces have random names and are removed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

CLIENTS = 0
"""The host of the clients."""
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


class Hosts:
    def __init__(self, count: int = 3) -> None:
        self.numbers = range(1, count + 1)
        self._prefix = f"moldau-{secrets.token_hex(3)}"
        self._router = f"{self._prefix}-router"
        self._dropped: list[tuple[str, ...]] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        _ip("netns", "add", self._router)
        with _entered(self._router):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number in (CLIENTS, *self.numbers):
            host = self._name(number)
            _ip("netns", "add", host)
            _ip(
                "link",
                "add",
                f"h{number}",
                "netns",
                self._router,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                host,
            )
            _ip("-n", self._router, "address", "add", f"10.77.{number}.1/24", "dev", f"h{number}")
            _ip("-n", self._router, "link", "set", f"h{number}", "up")
            _ip("-n", host, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host, "link", "set", device, "up")
            _ip("-n", host, "route", "add", "default", "via", f"10.77.{number}.1")

    def close(self) -> None:
        """Kills what still runs on the hosts, and removes them."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for name in (self._router, *(self._name(number) for number in (CLIENTS, *self.numbers))):
            with contextlib.suppress(HostsError):
                _ip("netns", "delete", name)

    def address(self, number: int) -> str:
        return f"10.77.{number}.2"

    def spawn(
        self,
        number: int,
        command: Sequence[str],
        *,
        output: IO[bytes],
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [_tool(), "netns", "exec", self._name(number), *command],
            stdin=stdin,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    @contextlib.contextmanager
    def clients(self) -> Iterator[None]:
        with _entered(self._name(CLIENTS)):
            yield

    def drop(self, source: int, target: int) -> None:
        """A blackhole rule in the router: no answer, not even an ICMP one."""
        rule = ("from", self.address(source), "to", self.address(target), "blackhole")
        _ip("-n", self._router, "rule", "add", *rule)
        self._dropped.append(rule)

    def cut_link(self, one: int, other: int) -> None:
        self.drop(one, other)
        self.drop(other, one)

    def cut(self, number: int, *, from_clients: bool = True) -> None:
        for other in (CLIENTS, *self.numbers) if from_clients else self.numbers:
            if other != number:
                self.cut_link(number, other)

    def cut_outgoing(self, number: int) -> None:
        """It hears everybody, and nobody hears it."""
        for other in (CLIENTS, *self.numbers):
            if other != number:
                self.drop(number, other)

    def heal(self) -> None:
        while self._dropped:
            _ip("-n", self._router, "rule", "delete", *self._dropped.pop())

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number or 'clients'}"


class HostsError(Exception):
    """Network namespaces cannot be made here, or `ip` refused a command."""


def obstacle() -> str | None:
    """Why there can be no hosts on this machine; None where there can."""
    try:
        with Hosts(1) as hosts:
            hosts.cut(1)
            hosts.heal()
    except (HostsError, OSError) as error:
        return f"network namespaces cannot be made here: {error}"
    return None


@contextlib.contextmanager
def _entered(namespace: str) -> Iterator[None]:
    """The calling thread is in that network namespace."""
    with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{namespace}") as inside:
        _set_namespace(inside)
        try:
            yield
        finally:
            _set_namespace(before)


def _set_namespace(file: IO[str]) -> None:
    if _LIBC.setns(file.fileno(), _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise HostsError(f"setns: {os.strerror(code)}")


def _tool() -> str:
    found = shutil.which("ip", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin" + os.pathsep + "/sbin")
    if found is None:
        raise HostsError("the command `ip` (iproute2) is not installed")
    return found


def _ip(*arguments: str) -> None:
    answer = subprocess.run([_tool(), *arguments], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise HostsError(f"ip {' '.join(arguments)}: {answer.stderr.strip()}")

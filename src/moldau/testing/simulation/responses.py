"""Responses that never arrive: the broker did what the client asked for, and the client does not learn it."""

from __future__ import annotations

from moldau.config.keys import nearest
from moldau.errors import SimulationError
from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import World
from moldau.testing.simulation.processes import ApplicationHost
from moldau.testing.simulation.transport import Address, Buffer, SimulatedTransport
from moldau.wire.apis import ApiKey

_APIS = {"".join(word.capitalize() for word in key.name.split("_")): key for key in ApiKey}
"""By Kafka's names: Produce, OffsetCommit, EndTxn."""
REQUEST_HEAD_BYTES = 12
"""Size, API key, API version, correlation id."""
RESPONSE_HEAD_BYTES = 8
"""Size, correlation id."""


class LostResponse:
    """The next response to a request of one API: the network loses it, and the connection breaks."""

    def __init__(self, api: str, broker: Host | None, client: Host | None) -> None:
        key = _APIS.get(api)
        if key is None:
            close = nearest(api, _APIS)
            hint = f"; did you mean {close!r}?" if close else f"; known are {', '.join(_APIS)}"
            raise SimulationError(f"{api!r} is not the name of a request{hint}")
        self.api = api
        self.key = key
        self.broker = broker
        self.client = client
        self.happened = False

    def matches(self, key: int, broker: Host, client: Host) -> bool:
        return key == self.key and self.broker in (None, broker) and self.client in (None, client)


class ResponseFilter:
    """Reads along on the connections of applications, as `Network.on_write`."""

    def __init__(self, world: World, hosts: dict[str, Host]) -> None:
        self.to_lose: list[LostResponse] = []
        self._world = world
        self._hosts = hosts
        self._connections: dict[Address, _Connection] = {}

    def __call__(self, sender: SimulatedTransport, data: Buffer) -> bool:
        """Whether that goes out."""
        if isinstance(sender.loop.host, ApplicationHost):
            self._connections.setdefault(sender.local, _Connection()).requested(data)
            return True
        connection = self._connections.get(sender.remote)
        if connection is None:
            return True
        client = self._hosts[sender.remote[0]]
        for key in connection.answered(data):
            for lost in self.to_lose:
                if lost.matches(key, sender.loop.host, client):
                    lost.happened = True
                    self.to_lose.remove(lost)
                    text = "its response to a {} request from {} is lost"
                    self._world.note(sender.loop.host.name, text, lost.api, client.name)
                    sender.abort()
                    return False
        return True


class _Connection:
    def __init__(self) -> None:
        self._requests = _Heads(REQUEST_HEAD_BYTES)
        self._responses = _Heads(RESPONSE_HEAD_BYTES)
        self._keys: dict[bytes, int] = {}
        """API keys of unanswered requests, by correlation id."""

    def requested(self, data: Buffer) -> None:
        for head in self._requests.feed(data):
            self._keys[head[8:12]] = int.from_bytes(head[4:6], "big")

    def answered(self, data: Buffer) -> list[int]:
        """The API keys of the responses that begin in `data`."""
        return [self._keys.pop(head[4:8], -1) for head in self._responses.feed(data)]


class _Heads:
    """The first bytes of each frame of a stream."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._head = bytearray()
        self._rest = 0
        """Bytes of the present frame after its head."""

    def feed(self, data: Buffer) -> list[bytes]:
        found, place = [], 0
        while place < len(data):
            if self._rest:
                step = min(self._rest, len(data) - place)
                self._rest -= step
            else:
                step = min(self._length - len(self._head), len(data) - place)
                self._head += data[place : place + step]
                if len(self._head) == self._length:
                    found.append(bytes(self._head))
                    self._rest = max(0, int.from_bytes(self._head[:4], "big") + 4 - self._length)
                    self._head.clear()
            place += step
        return found

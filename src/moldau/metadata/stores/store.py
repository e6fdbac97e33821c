"""Where metadata is kept, and who may write it: a file of a broker on its own (`local_store`), a folder shared by the
brokers of one machine (`shared_store`), an ensemble across machines (`zookeeper_store`).

A store elects one controller at a time. Each election begins a new epoch, and only the newest epoch can write: what an
older one tries is refused, however late it comes. So there is one sequence of records, each appended by a controller
that knew all those before it, and a record that a broker has seen is never undone.

Methods block, and may be called from any thread; `append` by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record


class Candidate(NamedTuple):
    """A broker that can be the controller, and where the others would find it."""

    node_id: int
    host: str
    port: int


class ControllerTerm(NamedTuple):
    """The controller of an epoch. Epochs only grow, also across restarts of the whole cluster."""

    epoch: int
    node_id: int
    host: str
    port: int


Endpoint = tuple[str, str, int, str]
"""Listener name, host, port, security protocol."""

OnChange = Callable[[ControllerTerm | None], None]
"""Called with each new controller (this broker or another), with None while none is known; from any thread, in order.
It must return immediately and may not raise."""


class MetadataStore(Protocol):
    def open(self) -> None:
        """Makes the store usable; ConfigError or StorageError that say what to do where it is not."""

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        """Takes part in elections from now on, and reports every change of the controller, first the current one."""

    def announce(self, node_id: int, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """Lets tools that ask the store (`--zookeeper`) find this broker while it runs; the cluster does not use it."""

    def take_over(self, epoch: int) -> None:
        """The controller of `epoch` is known to be dead: begin the next epoch without waiting for its time-out."""

    def load(self, epoch: int) -> MetadataImage:
        """Everything kept so far, for the controller of `epoch`; FencedControllerError for any other."""

    def append(self, epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        """Keeps `records`, all or none, durable when this returns; `image` is the state with them, for a snapshot.

        After any StorageError but a FencedControllerError the controller has to load again, or to wait for the next
        epoch: whether the records are there may be in doubt.
        """

    def resign(self) -> None:
        """Stops being the controller, so that the next one need not wait, and takes no part in elections."""

    def campaign_again(self) -> None:
        """Takes part in elections again, after `resign`."""

    def close(self) -> None: ...

"""The metadata store of a simulated cluster, with the promise of `moldau.metadata.stores.store`, as an ensemble has it.

Each process of a broker has a session, which lives while its host reaches the store. One that is not heard of for the
session timeout ends, and with it the leadership that it held. While the store itself is away no session ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moldau.errors import FencedControllerError, StorageError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.stores.store import Candidate, ControllerTerm, Endpoint, OnChange
from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import MS, SimulatedLoop, World
from moldau.testing.simulation.network import Network
from moldau.testing.simulation.threads import WouldBlock

TICK_US = 50 * MS
TELL_US = (MS, 30 * MS)
"""How long it takes until a broker learns of an election."""

FLAP_US = (0, 12 * MS)

Watcher = Callable[[int, Sequence[Record], MetadataImage, MetadataImage], None]
"""Called with each append: the epoch, the records, the images before and after."""


class SimulatedStore:
    def __init__(self, world: World, network: Network, *, session_timeout_ms: int = 2_000) -> None:
        self.world = world
        self.network = network
        self.host = Host(world, network, "store")
        self.session_timeout_us = session_timeout_ms * MS
        self.is_away = False
        """Whether it does not respond at all."""
        self.refusals = 0.0
        """The share of appends that fail; half of them are kept all the same."""
        self.flaps = False
        """Controllers lose their place, each soon after it has loaded the metadata."""
        self.image = MetadataImage()
        self.term: ControllerTerm | None = None
        self.watchers: list[Watcher] = []
        self._epoch = 0
        self._owner: StoreSession | None = None
        self._sessions: list[StoreSession] = []
        world.after(TICK_US, self._tick)

    def session(self, loop: SimulatedLoop) -> StoreSession:
        """For one process."""
        return StoreSession(self, loop)

    # -- faults

    def stop(self) -> None:
        self.is_away = True

    def start(self) -> None:
        self.is_away = False

    def refuse(self, share: float) -> None:
        self.refusals = share

    def flap(self) -> None:
        self.flaps = True

    def stop_flapping(self) -> None:
        self.flaps = False

    def heal(self) -> None:
        self.start()
        self.refuse(0.0)
        self.stop_flapping()

    # -- elections

    def join(self, session: StoreSession) -> None:
        """An earlier process of the same broker is gone; so is its session."""
        for earlier in [one for one in self._sessions if one.candidate[0] == session.candidate[0]]:
            self.leave(earlier)
        self._sessions.append(session)

    def leave(self, session: StoreSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
        if self._owner is session:
            self.end_term()

    def end_term(self) -> None:
        self._owner = self.term = None
        self.elect()

    def elect(self) -> None:
        if self.term is None:
            ready = [one for one in self._sessions if one.stands and self.reaches(one.loop)]
            if ready:
                # While it flaps, often the newest: a broker that has just begun to start.
                self.begin(ready[-1] if self.flaps and self.world.chance(0.5) else self.world.random.choice(ready))
            else:
                self._tell_all()

    def begin(self, session: StoreSession) -> None:
        self._epoch += 1
        self._owner = session
        self.term = ControllerTerm(self._epoch, *session.candidate)
        self.world.note("store", "broker {} is elected controller, epoch {}", session.candidate[0], self._epoch)
        self._tell_all()

    def leads(self, session: StoreSession, epoch: int) -> bool:
        return self._owner is session and self._epoch == epoch

    def depose_soon(self, session: StoreSession, epoch: int) -> None:
        def depose() -> None:
            if self.leads(session, epoch):
                self.end_term()

        self.world.after(self.world.between_us(*FLAP_US), depose)

    def reaches(self, loop: SimulatedLoop) -> bool:
        """Whether that process and the store hear each other."""
        network, host, store = self.network, loop.host, self.host
        is_cut = network.is_cut(host, store) or network.is_cut(store, host)
        return not (self.is_away or loop.is_dead or loop.is_paused or is_cut)

    def _tell_all(self) -> None:
        for session in self._sessions:
            self.world.after(self.world.between_us(*TELL_US), session.tell)

    def _tick(self) -> None:
        now_us = self.world.now_us
        for session in tuple(self._sessions):
            if self.is_away or self.reaches(session.loop):
                session.seen_us = now_us
                if not self.is_away:
                    if session.resigned_epoch == self._epoch and self._owner is session:
                        self.end_term()
                    session.tell()
                    if session.taken_over_epoch == self._epoch and self._owner is not session and session.stands:
                        self.begin(session)
            elif now_us - session.seen_us > self.session_timeout_us and self._owner is session:
                self.end_term()
            session.notice_silence()
        if not self.is_away:
            self.elect()
        self.world.after(TICK_US, self._tick)

    # -- records

    def keep(self, epoch: int, records: Sequence[Record]) -> None:
        before = self.image
        self.image = before.apply(records)
        for watcher in self.watchers:
            watcher(epoch, records, before, self.image)


class StoreSession:
    """A `MetadataStore` for one process."""

    def __init__(self, store: SimulatedStore, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.candidate = Candidate(-1, "", 0)
        self.stands = False
        self.taken_over_epoch = -1
        self.resigned_epoch = -1
        """Of the term that the process gave up, perhaps while the store could not be reached."""
        self.seen_us = store.world.now_us
        """When the store last heard of the session."""
        self._store = store
        self._answered_us = store.world.now_us
        """When the process last heard of the store."""
        self._told: ControllerTerm | None = None
        self._on_change: OnChange = lambda _: None

    def tell(self) -> None:
        store = self._store
        if not store.reaches(self.loop):
            return
        self._answered_us = store.world.now_us
        term = store.term
        if term is not None and term[1:] == self.candidate and not store.leads(self, term.epoch):
            term = None  # that of an earlier process of this broker
        if term != self._told:
            self._told = term
            self._on_change(term)

    def notice_silence(self) -> None:
        if (
            self._told is not None
            and self._store.world.now_us - self._answered_us > self._store.session_timeout_us
            and not (self.loop.is_dead or self.loop.is_paused)
        ):
            self._told = None
            self._on_change(None)

    def _ask(self) -> None:
        """Waits for the store, for as long as the session may last."""
        if self._store.reaches(self.loop):
            self._answered_us = self._store.world.now_us
        elif self._store.world.now_us - self._answered_us > self._store.session_timeout_us:
            raise StorageError("the metadata store does not answer")
        else:
            raise WouldBlock

    # -- MetadataStore

    def open(self) -> None:
        if not self._store.reaches(self.loop):
            raise WouldBlock

    def campaign(self, candidate: Candidate, on_change: OnChange) -> None:
        if not self._store.reaches(self.loop):
            raise WouldBlock
        self.candidate = candidate
        self._on_change = on_change
        self.stands = True
        self.seen_us = self._answered_us = self._store.world.now_us
        self._store.join(self)
        on_change(None)
        self.tell()

    def announce(self, node_id: int, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        pass

    def take_over(self, epoch: int) -> None:
        self.taken_over_epoch = epoch

    def load(self, epoch: int) -> MetadataImage:
        self._ask()
        self._check(epoch)
        if self._store.flaps:
            self._store.depose_soon(self, epoch)
        return self._store.image

    def append(self, epoch: int, records: Sequence[Record], image: MetadataImage) -> None:
        self._ask()
        self._check(epoch)
        store = self._store
        if store.refusals and store.world.chance(store.refusals):
            if store.world.chance(0.5):
                store.keep(epoch, records)
            raise StorageError("the answer of the metadata store was lost")
        store.keep(epoch, records)

    def resign(self) -> None:
        self.stands = False
        if self._told is not None:
            self.resigned_epoch = self._told.epoch
            if self._store.reaches(self.loop) and self._store.leads(self, self._told.epoch):
                self._store.end_term()

    def campaign_again(self) -> None:
        self.stands = True

    def close(self) -> None:
        self.stands = False
        self._store.leave(self)

    def _check(self, epoch: int) -> None:
        if not self._store.leads(self, epoch):
            raise FencedControllerError(f"controller epoch {epoch} is fenced by a newer controller")

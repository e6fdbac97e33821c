"""Share sessions (KIP-932): a member names the partitions it fetches from once, then only what changed.

A request is one of three, by its session epoch:

    0       a new session, in place of an older one; the request names all partitions and acknowledges nothing
    e > 0   the session goes on: partitions may be added and forgotten, and the next epoch is e + 1
    -1      the session ends after this request

A session lives as long as the connection it was opened on: when that is lost, the member's records are released.
Pure state, no I/O. There are at most `group.share.max.share.sessions`, and there is a bound on what all of them
remember: partitions of their clients' choosing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from moldau.coordinators.share.state_shard import ShareKey
from moldau.errors import ErrorCode, KafkaError

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1

PARTITIONS_MAX = 10_000
"""Per session, which keeps them whether they exist or not and checks each of them for every fetch."""
REMEMBERED_MAX = 500_000
"""For all sessions together: about 100 MB."""

Owner = tuple[str, str]
"""Group id and member id."""


class ShareSession:
    __slots__ = ("connection", "epoch", "owner", "partitions")

    def __init__(self, owner: Owner, connection: Hashable) -> None:
        self.owner = owner
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[ShareKey, None] = {}

    def check_epoch(self, epoch: int) -> None:
        """Checks the epoch of a request that continues the session, and expects the next one."""
        if epoch == FINAL_EPOCH:
            return
        if epoch != self.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"the request has epoch {epoch}, its share session {self.epoch}"
            )
        self.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1

    def rotated(self) -> Sequence[ShareKey]:
        """The partitions, each time from another one on: no partition can starve the others of a fetch's limits."""
        keys = list(self.partitions)
        start = self.epoch % len(keys) if keys else 0
        return keys[start:] + keys[:start]


class ShareSessions:
    def __init__(self) -> None:
        self._sessions: dict[Owner, ShareSession] = {}
        self._by_connection: dict[Hashable, set[Owner]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, owner: Owner, connection: Hashable, partitions: Iterable[ShareKey], sessions_max: int
    ) -> ShareSession:
        self.close(owner)
        if len(self._sessions) >= sessions_max:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"the limit of {sessions_max} share sessions is reached"
            )
        session = ShareSession(owner, connection)
        self.change(session, partitions, ())
        self._sessions[owner] = session
        self._by_connection.setdefault(connection, set()).add(owner)
        return session

    def change(self, session: ShareSession, added: Iterable[ShareKey], forgotten: Iterable[ShareKey]) -> None:
        """KafkaError, and nothing is added, when they are too many."""
        gone = frozenset(forgotten)
        new = dict.fromkeys(key for key in added if key not in session.partitions and key not in gone)
        for key in gone:
            session.partitions.pop(key, None)
        if len(session.partitions) + len(new) > PARTITIONS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a share session can have at most {PARTITIONS_MAX} partitions")
        if new and sum(len(one.partitions) for one in self._sessions.values()) + len(new) > REMEMBERED_MAX:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, "all share sessions together have too many partitions"
            )
        session.partitions.update(new)

    def find(self, owner: Owner, epoch: int) -> ShareSession:
        session = self._sessions.get(owner)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "unknown share session")
        session.check_epoch(epoch)
        return session

    def close(self, owner: Owner) -> None:
        session = self._sessions.pop(owner, None)
        if session is not None:
            owners = self._by_connection[session.connection]
            owners.discard(owner)
            if not owners:
                del self._by_connection[session.connection]

    def has_group(self, group_id: str) -> bool:
        return any(owner[0] == group_id for owner in self._sessions)

    def of_connection(self, connection: Hashable) -> list[ShareSession]:
        return [self._sessions[owner] for owner in self._by_connection.get(connection, ())]

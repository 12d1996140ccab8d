"""How many connections a SuperLink has open, and which one makes room for a newer one.

A connection *waits* until a request of it has proved who sends it, and again after one that has
not. So whoever proves nothing holds a connection only as long as nobody else needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

PROOF = "fedrows.proof"  # in the scope of a request: what takes whether the request has a proof
FILES_APART = 64  # files of the process that are not connections: database, logs, libraries


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be: in all, of an address, waiting of it, and of one name.

    per_name: of one who has proved who it is; None: as many as its address may have.
    """

    total: int = 1024
    per_address: int = 256
    waiting: int = 32
    per_name: int | None = None

    def within(self, files: int) -> ConnectionLimits:
        """The limits of a process that may open so many files."""
        total = max(8, min(self.total, files - FILES_APART))
        return ConnectionLimits(
            total, min(self.per_address, total // 2), min(self.waiting, total // 4), self.per_name
        )


class Connection:
    """One accepted connection: where it comes from, and how to end it."""

    def __init__(self, source: str, end: Callable[[], Any]) -> None:
        self.source, self.end = source, end
        self.name = ""  # of who has proved it last


class Connections:
    """The connections that are open. Dictionaries keep their order: the oldest comes first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused = 0
        self._open: dict[str, dict[Connection, None]] = {}
        self._waiting: dict[Connection, None] = {}
        self._named: dict[str, dict[Connection, None]] = {}

    def admit(self, connection: Connection) -> bool:
        """Adds a connection, at the cost of an older one that still waits; False if there is none.

        Honest clients wait for milliseconds, so whoever is ended here has been idle the longest.
        """
        of_source = self._open.get(connection.source, {})
        waiting = [one for one in of_source if one in self._waiting]
        total = sum(map(len, self._open.values()))
        if len(waiting) >= self.limits.waiting or (
            len(of_source) >= self.limits.per_address and waiting
        ):
            self._end(waiting[0])
        elif len(of_source) >= self.limits.per_address:
            self.refused += 1
            return False
        elif total >= self.limits.total:
            if not self._waiting:
                self.refused += 1
                return False
            self._end(next(iter(self._waiting)))
        self._open.setdefault(connection.source, {})[connection] = None
        self._waiting[connection] = None
        return True

    def _end(self, connection: Connection) -> None:
        self.refused += 1
        self.forget(connection)
        connection.end()

    def note(self, connection: Connection, proof: bool, name: str = "") -> None:
        """A request has come: the connection waits if it has no proof of who sends it.

        Whoever has too many open loses the oldest.
        """
        if proof:
            self._waiting.pop(connection, None)
            if name and name != connection.name and self.limits.per_name is not None:
                self._forget_name(connection)
                connection.name = name
                own = self._named.setdefault(name, {})
                own[connection] = None
                if len(own) > self.limits.per_name:
                    self._end(next(iter(own)))
        elif connection in self._open.get(connection.source, {}):
            self._waiting.setdefault(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._forget_name(connection)
        self._waiting.pop(connection, None)
        of_source = self._open.get(connection.source, {})
        of_source.pop(connection, None)
        if not of_source:
            self._open.pop(connection.source, None)

    def _forget_name(self, connection: Connection) -> None:
        own = self._named.get(connection.name, {})
        own.pop(connection, None)
        if not own:
            self._named.pop(connection.name, None)


def source_of(address: str) -> str:
    """What is counted as one: an IPv4 address, or the /64 network of an IPv6 one."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return str(ip_network((ip, 64), strict=False)) if not ip.is_loopback else str(ip)
    return str(ip)

"""Work for devices, in the gateway's store: rows down, an upload in pieces up.

    open      offered to its device until the deadline
    taken     its upload is there, whole, and has passed the checks
    refused   its upload has failed a check

An upload is stored whole or not at all: pieces lie beside it until the last one has come.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedrows.flower.gateway.store import GatewayStore

LOOK = 0.03  # seconds between two looks for uploads
Place = tuple[int, int]  # the tag of a message, and a position among the clients that it names


@dataclass(frozen=True)
class NewWork:
    """Work that a device is to get."""

    device: str
    form: str  # JSON: what the upload must look like
    message: bytes


@dataclass(frozen=True)
class OfferedWork:
    """Work as its device sees it."""

    id: str
    bytes: int
    deadline: float
    received: int


@dataclass(frozen=True)
class HeldWork:
    """Work as the gateway holds it, without its message and its upload."""

    id: str
    tag: int
    deadline: float
    state: str
    form: str
    total: int | None
    sha256: str | None
    received: int


class WorkStore:
    """The work of a gateway's devices."""

    def __init__(self, store: GatewayStore) -> None:
        self.store = store

    def put(
        self,
        run: str,
        tag: int,
        deadline: float,
        works: Sequence[NewWork],
        waiting: Collection[Place] = (),
    ) -> list[str]:
        """Leaves the work of a message; returns its ids.

        waiting: earlier work of the run that still counts; all other is dropped.
        """
        ids = [secrets.token_hex(16) for _ in works]
        rows = [
            (id_, work.device, run, tag, position, deadline, "open", work.form, work.message)
            for position, (id_, work) in enumerate(zip(ids, works, strict=True))
        ]
        with self.store.change() as database:
            known = self.store.rows("SELECT id, tag, place FROM work WHERE run = ?", run)
            for id_, *place in known:
                if tuple(place) not in waiting:
                    _delete(database, "id = ?", id_)
            _delete(database, "deadline < ?", time.time() - 3600)
            database.executemany(
                "INSERT INTO work (id, device, run, tag, place, deadline, state, form, message) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
        return ids

    def under_way(self, run: str) -> set[Place]:
        """The work of a run that its devices can still answer."""
        query = "SELECT tag, place FROM work WHERE run = ? AND state = 'open' AND deadline > ?"
        return set(self.store.rows(query, run, time.time()))

    def taken(self, run: str) -> dict[Place, bytes]:
        """The uploads of a run that were taken; they stay until the server no longer waits."""
        query = "SELECT tag, place, upload FROM work WHERE run = ? AND state = 'taken'"
        return {(tag, position): upload for tag, position, upload in self.store.rows(query, run)}

    def open_count(self, tag: int) -> int:
        """How many devices of a round have not answered yet."""
        query = "SELECT count(*) FROM work WHERE tag = ? AND state = 'open'"
        return int(self.store.row(query, tag)[0])

    def wait(self, tag: int, missing: int, deadline: float) -> dict[str, bytes]:
        """What `collect` gives, once all but so many have answered, or the time is up."""
        while self.open_count(tag) > missing and time.time() < deadline:
            time.sleep(LOOK)
        return self.collect(tag)

    def collect(self, tag: int) -> dict[str, bytes]:
        """The uploads of a round by the id of their work; the work is over with this."""
        with self.store.change() as database:
            query = "SELECT id, upload FROM work WHERE tag = ? AND state = 'taken'"
            rows = self.store.rows(query, tag)
            _delete(database, "tag = ?", tag)
        return dict(rows)

    def waiting_devices(self) -> set[str]:
        """The devices that have work."""
        query = "SELECT DISTINCT device FROM work WHERE state = 'open' AND deadline > ?"
        return {device for (device,) in self.store.rows(query, time.time())}

    def offer(self, device: str) -> OfferedWork | None:
        """The work that waits for a device; None if there is none."""
        row = self.store.row(
            "SELECT id, length(message), deadline, received FROM work "
            "WHERE device = ? AND state = 'open' AND deadline > ? ORDER BY deadline LIMIT 1",
            device,
            time.time(),
        )
        return None if row is None else OfferedWork(*row)

    def find(self, device: str, id_: str) -> HeldWork | None:
        """A device's own work; None if it has none of this id."""
        row = self.store.row(
            "SELECT id, tag, deadline, state, form, total, sha256, received FROM work "
            "WHERE id = ? AND device = ?",
            id_,
            device,
        )
        return None if row is None else HeldWork(*row)

    def message(self, id_: str, offset: int) -> bytes | None:
        """The message of some work, from a byte on; None if the work is gone."""
        row = self.store.row("SELECT substr(message, ?) FROM work WHERE id = ?", offset + 1, id_)
        return None if row is None else bytes(row[0])

    def begin_upload(self, id_: str, total: int, sha256: str) -> None:
        """Drops the pieces that are there, and expects another upload."""
        with self.store.change() as database:
            database.execute("DELETE FROM pieces WHERE work = ?", [id_])
            database.execute(
                "UPDATE work SET total = ?, sha256 = ?, received = 0 "
                "WHERE id = ? AND state = 'open'",
                [total, sha256, id_],
            )

    def add_piece(self, id_: str, start: int, data: bytes) -> int | None:
        """Adds the next piece of an upload; returns how many bytes are there, None if it is gone.

        Work goes with its round, also while a piece of its upload comes in.
        """
        with self.store.change() as database:
            moved = database.execute(
                "UPDATE work SET received = received + ? WHERE id = ? AND received = ?",
                [len(data), id_, start],
            )
            if moved.rowcount == 1 and data:
                database.execute("INSERT INTO pieces VALUES (?, ?, ?)", [id_, start, data])
            row = self.store.row("SELECT received FROM work WHERE id = ?", id_)
        return None if row is None else int(row[0])

    def joined(self, id_: str) -> bytes:
        """All pieces of an upload that have come."""
        rows = self.store.rows("SELECT data FROM pieces WHERE work = ? ORDER BY start", id_)
        return b"".join(data for (data,) in rows)

    def take(self, id_: str, upload: bytes) -> bool:
        """Stores an upload that has passed the checks; False if the round is over."""
        return self._settle(id_, "taken", upload)

    def refuse(self, id_: str) -> bool:
        """Stores that an upload has failed a check; nothing of it is kept."""
        return self._settle(id_, "refused", None)

    def _settle(self, id_: str, state: str, upload: bytes | None) -> bool:
        with self.store.change() as database:
            done = database.execute(
                "UPDATE work SET state = ?, upload = ?, message = x'' "
                "WHERE id = ? AND state = 'open' AND deadline > ?",
                [state, upload, id_, time.time()],
            )
            database.execute("DELETE FROM pieces WHERE work = ?", [id_])
            return done.rowcount == 1


def _delete(database: sqlite3.Connection, condition: str, value: object) -> None:
    """Deletes work with its pieces."""
    database.execute(
        f"DELETE FROM pieces WHERE work IN (SELECT id FROM work WHERE {condition})", [value]
    )
    database.execute(f"DELETE FROM work WHERE {condition}", [value])

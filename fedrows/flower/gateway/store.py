"""What a gateway knows of its devices, in one SQLite file that two processes share.

    web process    enrols devices, takes registrations and uploads     (`web`)
    ClientApp      lists the devices, leaves work, collects uploads    (`gateway_node`)

The file is gateway.db in the node's state folder, and only the node's user can read it. A token is
stored as its SHA-256. A key must be stored as it is, because HMAC needs it to check a signature.
Every change is one transaction, so a killed process leaves a change whole or undone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private, reason

FILE = "gateway.db"
SKEW = 300  # seconds that a device's clock may be off
_BUSY = 20.0  # seconds to wait for the other process

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
    hash BLOB PRIMARY KEY, until REAL NOT NULL, device TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS devices (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, key BLOB NOT NULL, seen REAL NOT NULL);
CREATE TABLE IF NOT EXISTS registrations (
    device TEXT PRIMARY KEY, program TEXT NOT NULL, version TEXT NOT NULL,
    examples INTEGER NOT NULL, message BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS keys (key BLOB PRIMARY KEY, device TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nonces (
    device TEXT, nonce TEXT, at REAL NOT NULL, PRIMARY KEY (device, nonce)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nonces_at ON nonces (at);
CREATE TABLE IF NOT EXISTS work (
    id TEXT PRIMARY KEY, device TEXT NOT NULL, run TEXT NOT NULL, tag INTEGER NOT NULL,
    place INTEGER NOT NULL, deadline REAL NOT NULL, state TEXT NOT NULL, form TEXT NOT NULL,
    message BLOB NOT NULL, total INTEGER, sha256 TEXT, received INTEGER NOT NULL DEFAULT 0,
    upload BLOB);
CREATE INDEX IF NOT EXISTS work_device ON work (device, state);
CREATE INDEX IF NOT EXISTS work_tag ON work (tag, state);
CREATE TABLE IF NOT EXISTS pieces (
    work TEXT, start INTEGER, data BLOB NOT NULL, PRIMARY KEY (work, start)) WITHOUT ROWID;
"""


class StoreError(FedrowsError):
    """The gateway's store cannot be read or written."""


class KeyTaken(FedrowsError):
    """A public key that is another device's."""


class TokenRefused(FedrowsError):
    """A token that enrols nobody, or a name that is taken."""


@dataclass(frozen=True)
class EnrolledDevice:
    """A device as the gateway knows it."""

    id: str
    name: str
    key: bytes


@dataclass(frozen=True)
class DeviceRegistration:
    """What a device has registered for a program."""

    name: str
    device: str
    version: str
    examples: int
    message: bytes


class GatewayStore:
    """The devices of a gateway; each thread has a connection of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE
        self._threads = threading.local()
        try:
            make_private(folder)
            if not self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreError(
                f"The gateway's store {self.path} cannot be made ({reason(error)}): choose "
                "another --state."
            ) from None
        with self.change() as database:
            for statement in _SCHEMA.split(";"):
                database.execute(statement)

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a query."""
        try:
            return self._connection().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def row(self, query: str, *values: object) -> Any:
        """The first row of a query; None if there is none."""
        return next(iter(self.rows(query, *values)), None)

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are kept all together, or none of them."""
        try:
            database = self._connection()
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Closes the connection of this thread."""
        connection = getattr(self._threads, "connection", None)
        if connection is not None:
            connection.close()
            self._threads.connection = None

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._threads, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            self._threads.connection = connection
        return connection

    def _failed(self, error: sqlite3.Error) -> StoreError:
        return StoreError(
            f"The gateway's store {self.path} cannot be used ({error}): make room on its disk, or "
            "make it writable."
        )

    # -- tokens and devices --

    def make_token(self, hours: float = 24.0) -> str:
        """A new token, good for one device until so many hours have passed."""
        token = secrets.token_urlsafe(32)
        with self.change() as database:
            database.execute("DELETE FROM tokens WHERE device IS NULL AND until < ?", [time.time()])
            database.execute(
                "INSERT INTO tokens VALUES (?, ?, NULL)", [_hash(token), time.time() + 3600 * hours]
            )
        return token

    def enrol(self, token: str, key: bytes, name: str | None) -> EnrolledDevice:
        """The device that a token makes; the same token and key give the same device again."""
        with self.change() as database:
            row = self.row("SELECT until, device FROM tokens WHERE hash = ?", _hash(token))
            if row is None:
                raise TokenRefused("The token is not one of this gateway: ask for another.")
            until, used_by = row
            if used_by is not None:
                device = self.device(used_by)
                if device is not None and hmac.compare_digest(device.key, key):
                    return device
                raise TokenRefused("The token has been used by another device: ask for another.")
            if until < time.time():
                raise TokenRefused("The token is too old: ask for another.")
            id_ = secrets.token_hex(16)
            device = EnrolledDevice(id_, name or id_, key)
            if self.row("SELECT 1 FROM devices WHERE name = ?", device.name):
                raise TokenRefused(
                    f"Another device is called {device.name!r}: choose another name."
                )
            database.execute(
                "INSERT INTO devices VALUES (?, ?, ?, ?)", [id_, device.name, key, time.time()]
            )
            database.execute("UPDATE tokens SET device = ? WHERE hash = ?", [id_, _hash(token)])
            return device

    def device(self, id_: str) -> EnrolledDevice | None:
        """A device by its id; None if there is none."""
        row = self.row("SELECT id, name, key FROM devices WHERE id = ?", id_)
        return None if row is None else EnrolledDevice(*row)

    def remove_device(self, name: str) -> bool:
        """Takes out a device with all that is known of it; False if nobody is called that."""
        with self.change() as database:
            row = self.row("SELECT id FROM devices WHERE name = ?", name)
            if row is None:
                return False
            database.execute(
                "DELETE FROM pieces WHERE work IN (SELECT id FROM work WHERE device = ?)", row
            )
            for table in ("registrations", "work", "nonces", "keys"):
                database.execute(f"DELETE FROM {table} WHERE device = ?", row)
            database.execute("DELETE FROM devices WHERE id = ?", row)
            return True

    def devices(self) -> list[tuple[str, float, str | None]]:
        """Every device: its name, when it was seen last, and the program it registered for."""
        return self.rows(
            "SELECT name, seen, program FROM devices LEFT JOIN registrations "
            "ON registrations.device = devices.id ORDER BY name"
        )

    def is_new(self, device: str, nonce: str) -> bool:
        """Whether a device uses a nonce for the first time; it is taken note of."""
        now = time.time()
        with self.change() as database:
            database.execute("DELETE FROM nonces WHERE at < ?", [now - 2 * SKEW - 60])
            made = database.execute(
                "INSERT OR IGNORE INTO nonces VALUES (?, ?, ?)", [device, nonce, now]
            )
            return made.rowcount == 1

    # -- facts and registrations --

    def fact(self, name: str) -> str | None:
        """A fact of the gateway; None if it is not known."""
        row = self.row("SELECT value FROM facts WHERE name = ?", name)
        return None if row is None else row[0]

    def set_fact(self, name: str, value: str) -> None:
        """Stores a fact of the gateway."""
        with self.change() as database:
            database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, value])

    def register(
        self,
        device: str,
        program: str,
        version: str,
        examples: int,
        message: bytes,
        key: bytes | None = None,
    ) -> None:
        """Stores what a device has registered.

        key: its public key. Devices see each other's keys, and in a sum with one key twice no
        device takes part, so a key belongs to whoever has registered it first.
        """
        values: list[Any] = [device, program, version, examples, message]
        with self.change() as database:
            if key is not None:
                database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", [key, device])
                if self.row("SELECT device FROM keys WHERE key = ?", key) != (device,):
                    raise KeyTaken("The key is another device's: make one of your own.")
                database.execute("DELETE FROM keys WHERE device = ? AND key <> ?", [device, key])
            database.execute("INSERT OR REPLACE INTO registrations VALUES (?, ?, ?, ?, ?)", values)

    def registration(self, device: str, program: str | None) -> str | None:
        """The version of a device's registration for a program; None if there is none."""
        query = "SELECT version FROM registrations WHERE device = ? AND program = ?"
        row = self.row(query, device, program)
        return None if row is None else row[0]

    def registered(self, program: str) -> list[DeviceRegistration]:
        """All that is registered for a program, in the order of names."""
        rows = self.rows(
            "SELECT name, id, version, examples, message FROM registrations "
            "JOIN devices ON devices.id = registrations.device WHERE program = ? ORDER BY name",
            program,
        )
        return [DeviceRegistration(*row) for row in rows]

    def count_registered(self, program: str) -> int:
        """How many devices are registered for a program."""
        return int(self.row("SELECT count(*) FROM registrations WHERE program = ?", program)[0])

    def note_seen(self, device: str) -> None:
        """Takes note that a device is there."""
        with self.change() as database:
            database.execute("UPDATE devices SET seen = ? WHERE id = ?", [time.time(), device])


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()

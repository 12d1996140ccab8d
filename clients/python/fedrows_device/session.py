"""A device's session with its gateway: enrol, register, ask for work, train, send the update.

Whatever a step of it makes is in the device's folder before the next step begins. So a device that
is killed at any point goes on from there when it starts again, and a round that did not count
leaves no trace (`accepted` in docs/device-protocol.md of fedrows).
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrows_device.batches import Examples
from fedrows_device.examples_file import read_examples
from fedrows_device.program import Program
from fedrows_device.signed_http import (
    LARGEST_FILE,
    GatewayRefused,
    Kind,
    SignedHttp,
    has,
    pause_of,
)
from fedrows_device.storage import DeviceStorage, StorageError
from fedrows_device.wire import (
    Arrays,
    DeviceMessage,
    ids_to_bytes,
    pack,
    submodel_from_parts,
    submodel_to_parts,
    unpack,
)

MANIFEST = "manifest.json"
MOST_FILES = 100  # of a program
PIECE = 2**20  # bytes of an upload in one request
USUAL_PAUSE = 5.0  # seconds to the next check-in, if the gateway names none that can be waited
FACTS: dict[str, Kind] = {  # of work
    **dict.fromkeys(("run", "program", "registration"), str),
    **dict.fromkeys(("tag", "accepted", "round", "number"), int),
    "lr": (int, float),
}
UNFIT = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError, MemoryError)
GONE = (404, 410, 422)  # work that has gone on without the device, or was refused


class SessionError(Exception):
    """The device cannot go on: what is wrong, and what to do."""


@dataclass(frozen=True)
class SessionStep:
    """What a device has done, and the seconds until it should ask again."""

    done: str  # "trained", "waits" or "dropped"
    after: float = 0.0
    round: int = 0
    why: str = ""


class LoadedPrograms:
    """Programs that are loaded, for all devices of a process."""

    def __init__(self) -> None:
        self._lock, self._programs = threading.Lock(), dict[str, Program]()

    def get(self, id_: str, folder: Path) -> Program:
        """The program in a folder, loaded once."""
        with self._lock:
            if id_ not in self._programs:
                self._programs[id_] = Program.load(folder)
            return self._programs[id_]


class DeviceSession:
    """One device. data: the file of its examples. pinned: the only program that it runs, by the
    SHA-256 of its manifest.json, which has that of step.onnx.
    """

    def __init__(
        self,
        http: SignedHttp,
        storage: DeviceStorage,
        data: Path,
        programs: LoadedPrograms | None = None,
        pinned: str | None = None,
    ) -> None:
        self.http, self.storage, self.data = http, storage, data
        self._programs, self._pinned = programs or LoadedPrograms(), pinned
        self._examples: dict[tuple[str, str], Examples] = {}  # program, registration → examples
        known = storage.identity()
        self.name = str(known.get("name") or "")
        self.is_enrolled = "device" in known
        http.device, http.key = known.get("device", ""), bytes.fromhex(known.get("key", ""))

    def enrol(self, token: str, name: str | None = None) -> None:
        """Enrols the device; its key is stored before it is sent, so nothing is lost on the way."""
        known = self.storage.identity()
        if "device" in known:
            return
        if "key" not in known:
            known = {"key": secrets.token_hex(32)}
            self.storage.put_identity(known)
        given = {"token": token, "key": known["key"]} | ({"name": name} if name else {})
        answer = self.http.ask("POST", "/v1/enrol", json.dumps(given).encode(), signed=False)
        answer = answer.json(device=str, name=str)
        self.storage.put_identity({**known, "device": answer["device"], "name": answer["name"]})
        self.name, self.is_enrolled = answer["name"], True
        self.http.device, self.http.key = answer["device"], bytes.fromhex(known["key"])

    def step(self, wait: int = 20) -> SessionStep:
        """Checks in once, and does what there is to do."""
        if not self.is_enrolled:
            raise SessionError("This device is not enrolled: give it a token with --token.")
        try:
            return self._step(wait)
        except UNFIT as error:
            raise SessionError(
                "The gateway's program or work is none that this client can use "
                f"({type(error).__name__}: {error}): ask its operator."
            ) from error

    def _step(self, wait: int) -> SessionStep:
        nothing = type(None)
        kinds = {"program": (str, nothing), "registration": (str, nothing), "work": (dict, nothing)}
        state = self.http.ask("POST", f"/v1/check-in?wait={wait}").json(**kinds)
        id_ = state.get("program")
        if id_ is None:
            why = "The gateway has no program yet: its federation has begun no run."
            return SessionStep("waits", max(pause_of(state, USUAL_PAUSE), 1.0), why=why)
        program = self._program(id_)
        known = state.get("registration")
        if known is None or known != self._newest(id_):
            self._register(id_, program)
            return SessionStep("waits")
        if state.get("work") is None:
            self._forget_work("")
            return SessionStep("waits", pause_of(state, USUAL_PAUSE))
        try:
            return self._do(state["work"])
        except GatewayRefused as error:
            if error.status not in GONE:
                raise
            self._forget_work("")
            return SessionStep("dropped", why=str(error))

    # -- the program --

    def _program(self, id_: str) -> Program:
        """A program, fetched if it is not here."""
        folder = self.storage.path("program", id_)
        if not (folder / MANIFEST).is_file():
            self._fetch(id_)
        if self._pinned is not None:
            own = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
            if own != self._pinned.lower():
                raise SessionError(
                    "The gateway's program is not the pinned one: the SHA-256 of its "
                    f"manifest.json is {own}, so this device has not run it."
                )
        return self._programs.get(id_, folder)

    def _fetch(self, id_: str) -> None:
        """Fetches a program; the manifest comes last, for it says that all is there."""
        files = self.http.ask("GET", "/v1/program").json(program=str, files=dict)
        if files["program"] != id_:
            raise SessionError("The gateway's program has just changed: check in again.")
        if files.get("private"):
            raise SessionError(
                "The gateway's run is private, and this client makes no masks of secure sums: take "
                "part with the browser's client, or in runs in the clear."
            )
        known = files["files"]
        if not all(has(x, {"bytes": int, "sha256": str}) for x in known.values()):
            raise SessionError("The gateway does not say how large the program's files are.")
        if sum(x["bytes"] for x in known.values()) > LARGEST_FILE or len(known) > MOST_FILES:
            raise SessionError("The gateway's program is larger than any: this device takes none.")
        for name in sorted(known, key=lambda name: name == MANIFEST):
            self.storage.path("program", id_, name)
            target = f"/v1/program/{id_}/{name}"
            data = self.http.ask("GET", target, most=max(known[name]["bytes"], 0)).body
            if hashlib.sha256(data).hexdigest() != known[name]["sha256"]:
                raise SessionError(f"The gateway's file {name} is not what its digest says.")
            self.storage.write(f"program/{id_}/{name}", data)
        if MANIFEST not in known:
            raise SessionError(f"The gateway's program has no {MANIFEST}: ask its operator.")
        for old in self.storage.names("program"):
            if old != id_:
                self.storage.remove(f"program/{old}")

    # -- registration --

    def _newest(self, id_: str) -> str | None:
        """The version of the registration that the present data make; None if it is not stored."""
        digest = hashlib.sha256(self.data.read_bytes()).hexdigest()
        for version in self.storage.names("registered"):
            text = self.storage.read(f"registered/{version}/facts.json")
            if text and json.loads(text) == {"program": id_, "data": digest}:
                return version
        return None

    def _register(self, id_: str, program: Program) -> None:
        """Sends the rows that the examples need; the examples are kept beside what was sent."""
        data = self.data.read_bytes()
        examples = read_examples(self.data, data, program.manifest, program.folder)
        tables = program.manifest["tables"]
        parts = {
            f"index/{table}": ids_to_bytes(ids)
            for table, ids in examples.index.items()
            if not tables[table]["local"]
        }
        facts = {"examples": len(examples)}
        message = pack(DeviceMessage("registration", facts, parts))
        version = hashlib.sha256(message).hexdigest()[:32]
        about = {"program": id_, "data": hashlib.sha256(data).hexdigest()}
        self.storage.write(f"registered/{version}/message", message)
        self.storage.write(f"registered/{version}/data", data)
        self.storage.write(f"registered/{version}/facts.json", json.dumps(about).encode())
        self.http.ask("PUT", f"/v1/registration?program={id_}", message)

    def _registered(self, id_: str, version: str, program: Program) -> Examples:
        """The examples of a registration."""
        if (id_, version) not in self._examples:
            path = self.storage.path("registered", version)
            data = self.storage.read(f"registered/{version}/data")
            if data is None:
                raise SessionError(
                    "The work is for a registration that this device does not have: the gateway "
                    "leaves it out until its next run."
                )
            self._examples = {
                (id_, version): read_examples(path, data, program.manifest, program.folder)
            }
            self._forget_registrations(version)
        return self._examples[id_, version]

    def _forget_registrations(self, version: str) -> None:
        """Drops registrations older than the one that work has come for."""
        stored = [(self.storage.path("registered", x).stat().st_mtime_ns, x)
                  for x in self.storage.names("registered")]  # fmt: skip
        since = dict((x, at) for at, x in stored).get(version, 0)
        for at, other in stored:
            if at < since:
                self.storage.remove(f"registered/{other}")

    # -- work --

    def _do(self, work: dict[str, Any]) -> SessionStep:
        """Trains, or goes on with an upload that was under way."""
        if not has(work, {"id": str, "bytes": int, "received": int}):
            raise SessionError("The gateway offers work and does not say which.")
        id_ = work["id"]
        self._forget_work(id_)
        upload = self.storage.read(f"work/{self.storage.path(id_).name}/upload")
        if upload is None:
            upload = self._train(id_, work["bytes"])
        self._send(id_, upload, max(work["received"], 0))
        self.storage.remove(f"work/{id_}")
        return SessionStep("trained", round=int(unpack(upload).facts["tag"]) >> 31)

    def _train(self, id_: str, size: int) -> bytes:
        """The upload for some work; it and what stays here are stored before it is returned."""
        message = unpack(self.http.download(f"/v1/work/{id_}", size))
        facts = message.facts
        if message.kind != "work" or not has(facts, FACTS) or not math.isfinite(facts["lr"]):
            raise SessionError("The gateway's work does not say what it is for.")
        program = self._program(facts["program"])
        manifest, tables = program.manifest, program.manifest["tables"]
        examples = self._registered(facts["program"], facts["registration"], program)
        own = {t: ids for t, ids in examples.index.items() if tables[t]["local"]}
        shapes = {
            t: (len(x), tables[t]["width"]) for t, x in examples.index.items() if t not in own
        }
        names = {name: tuple(shape) for name, shape in manifest["dense"].items()}
        rows, dense = submodel_from_parts("model", message.parts, shapes, names)
        memory = self.storage.settle(facts["run"], facts["accepted"])
        local = {
            t: overlay(program.local_start(t, ids), ids, f"local/{t}", memory)
            for t, ids in own.items()
        }
        sent = kept = None
        if manifest["algorithm"]["sends"]:
            sent = flat(*submodel_from_parts("sent", message.parts, shapes, names))
        if manifest["keeps"]:
            kept = recall("kept", examples.index, flat(rows, dense), memory)
        result = program.train(
            examples,
            rows,
            dense,
            local,
            round=facts["round"],
            number=facts["number"],
            lr=facts["lr"],
            sent=sent,
            kept=kept,
        )
        after: Arrays = {}
        for table, ids in own.items():
            after |= {f"local/{table}": result.local_rows[table], f"local/{table}/ids": ids}
        for name, x in (result.kept or {}).items():
            after[f"kept/{name}"] = x
            if name.startswith("rows/"):
                after[f"kept/{name}/ids"] = examples.index[name.removeprefix("rows/")]
        if after and all(np.isfinite(x).all() for x in after.values()):
            self.storage.put_memory(facts["run"], facts["tag"], after)
        parts = submodel_to_parts("update", result.rows, result.dense)
        for name, arrays in result.extra.items():
            parts |= submodel_to_parts(name, *apart(arrays))
        parts["steps"] = ids_to_bytes(np.array([result.steps + 1]))
        parts["losses"] = np.array([result.loss], dtype="<f4").tobytes()
        for table, marks in (result.occurred or {}).items():
            parts[f"occurred/{table}"] = np.packbits(marks).tobytes()
        upload = pack(DeviceMessage("trained", {"tag": facts["tag"]}, parts))
        self.storage.write(f"work/{id_}/upload", upload)
        return upload

    def _send(self, id_: str, upload: bytes, received: int) -> None:
        """Sends an upload from where the gateway has it, piece by piece."""
        digest, total = hashlib.sha256(upload).hexdigest(), len(upload)
        offset, misses = min(received, total), 0
        while True:
            piece = upload[offset : offset + PIECE]
            target = f"/v1/work/{id_}?offset={offset}&total={total}&sha256={digest}"
            try:
                answer = self.http.ask("PUT", target, piece).json(state=str, received=int)
            except GatewayRefused as error:
                misses += 1
                if error.status != 409 or misses > 3:
                    raise
                at = error.content.get("received")
                offset = at if type(at) is int and 0 <= at <= total else 0
                continue
            if answer["state"] == "taken":
                return
            if not offset < answer["received"] <= total:
                raise SessionError("The gateway takes in nothing of the upload: try again later.")
            offset = answer["received"]

    def _forget_work(self, id_: str) -> None:
        """Drops all work but one: the gateway offers one at a time."""
        for name in self.storage.names("work"):
            if name != id_:
                self.storage.remove(f"work/{name}")


def overlay(rows: np.ndarray, ids: np.ndarray, name: str, memory: Arrays) -> np.ndarray:
    """Rows with what is stored for those of them that were there before."""
    if name in memory and len(ids):
        known = memory[f"{name}/ids"]
        _, here, there = np.intersect1d(ids, known, assume_unique=True, return_indices=True)
        rows = rows.copy()
        rows[here] = memory[name][there]
    return rows


def recall(name: str, index: Mapping[str, np.ndarray], like: Arrays, memory: Arrays) -> Arrays:
    """What is stored under a name, in the shape of the submodel; zero where nothing is."""
    kept = {}
    for part, x in like.items():
        if part.startswith("rows/"):
            ids = index[part.removeprefix("rows/")]
            kept[part] = overlay(np.zeros_like(x), ids, f"{name}/{part}", memory)
        else:
            kept[part] = memory.get(f"{name}/{part}", np.zeros_like(x))
    return kept


def flat(rows: Arrays, dense: Arrays) -> Arrays:
    """Rows and dense tensors under the names that a program gives them."""
    return {f"rows/{t}": x for t, x in rows.items()} | {f"dense/{n}": x for n, x in dense.items()}


def apart(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Rows and dense tensors behind `flat`."""
    rows = {n.removeprefix("rows/"): x for n, x in arrays.items() if n.startswith("rows/")}
    dense = {n.removeprefix("dense/"): x for n, x in arrays.items() if n.startswith("dense/")}
    return rows, dense


__all__ = ["DeviceSession", "LoadedPrograms", "SessionError", "SessionStep", "StorageError"]

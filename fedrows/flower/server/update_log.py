"""The updates of an asynchronous run on disk: no update is lost, and none is applied twice.

    arrivals/SEQUENCE.safetensors   an answer that was accepted: the updates of its clients, what
                                    they read, and when they began
    updates.jsonl                   a line for every update that was accepted, and one for what
                                    became of it: the step that applied it, or why none did

An update counts as accepted once its file is there. It counts as applied once the checkpoint of its
step is there: only then is the file deleted. An update that is dropped is dropped for good, and its
file goes at once: a node whose updates are all refused fills no disk. After a restart, lines of
steps past the checkpoint are taken out of updates.jsonl. What is left in `arrivals`, and is not in
that file as applied or dropped, waits for the next step again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedrows.errors import RunFolderError
from fedrows.files.whole import as_json, make_private, write_private
from fedrows.flower.server.uploads import ClientUpdate
from fedrows.flower.wire.clients import ClientName
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

UPDATES, ARRIVALS = "updates.jsonl", "arrivals"
Key = tuple[str, ClientName, int]  # a node, a client of it, and a tag
NodeClient = tuple[str, ClientName]  # a node, and a client of it


@dataclass(frozen=True)
class BufferedUpdate:
    """An update that has come in and waits for its step: of one client, or the mean of a group.

    A group's has no node, and its client is the name of the group.
    """

    node: str
    client: ClientName
    tag: int
    began: int  # the step that it began before
    sequence: int  # of the answer that brought it
    weight: float  # of its client when it came in
    update: ClientUpdate
    read: dict[str, Tensor]  # how often its rows had been moved when they were read, by table
    members: tuple[NodeClient, ...] = ()  # of a group, whose updates are in the mean

    @property
    def clients(self) -> list[NodeClient]:
        """Whose it is: nodes, and clients of them."""
        return list(self.members) or [(self.node, self.client)]

    @property
    def key(self) -> Key:
        """What names it in updates.jsonl."""
        return self.node, self.client, self.tag


class UpdateLog:
    """Accepted updates and what became of them; without a folder, nothing is kept."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._sequence = 0
        self._waiting: dict[int, set[Key]] = {}  # the updates of each file that wait for a step
        self._settled: set[int] = set()  # files that go with the next checkpoint
        self._applied: set[int] = set()  # files with updates that the next checkpoint will have

    def keep_in(self, folder: Path) -> None:
        """Keeps updates in a run folder from now on."""
        self._folder = folder
        make_private(folder / ARRIVALS)
        (folder / UPDATES).touch(mode=0o600)

    def next_sequence(self) -> int:
        """The number of the next answer."""
        self._sequence += 1
        return self._sequence

    def accept(self, updates: Sequence[BufferedUpdate]) -> None:
        """Keeps the updates of one answer; when it returns they are on the disk."""
        if self._folder is None or not updates:
            return
        sequence = updates[0].sequence
        write_private(self._file(sequence), _to_bytes(updates))
        self._waiting[sequence] = {update.key for update in updates}
        self._append({"accepted": sequence, **_named(update)} for update in updates)

    def settle(self, step: int, updates: Sequence[BufferedUpdate], why: str = "") -> None:
        """Notes that a step has applied some updates, or why none ever will."""
        if self._folder is None or not updates:
            return
        result = {"dropped": why, "step": step} if why else {"step": step}
        self._append({**_named(update), **result, "age": step - update.began} for update in updates)
        for update in updates:
            waiting = self._waiting.get(update.sequence, set())
            waiting.discard(update.key)
            if not why:
                self._applied.add(update.sequence)
            if not waiting and update.sequence in self._applied:
                self._settled.add(update.sequence)
            elif not waiting:
                self._delete(update.sequence)

    def saved(self) -> None:
        """Deletes what a checkpoint that is on the disk has made superfluous."""
        for sequence in self._settled:
            self._delete(sequence)
        self._settled.clear()
        self._applied.clear()

    def _delete(self, sequence: int) -> None:
        self._waiting.pop(sequence, None)
        if self._folder is not None:
            with suppress(OSError):
                self._file(sequence).unlink()

    def restore(self, step: int) -> list[BufferedUpdate]:
        """Goes back to the checkpoint of a step; returns the updates that wait, as they came."""
        if self._folder is None:
            return []
        every = read_updates(self._folder / UPDATES)
        lines = [x for x in every if x.get("step", 0) <= step or "dropped" in x]
        done = {_key(line) for line in lines if "step" in line}
        known = {_key(line) for line in lines if "accepted" in line}
        write_private(self._folder / UPDATES, b"".join(map(as_json, lines)))
        waiting = list[BufferedUpdate]()
        for path in sorted((self._folder / ARRIVALS).glob("*.safetensors")):
            updates = _from_file(path)
            left = [update for update in updates if update.key not in done]
            self._sequence = max(self._sequence, int(path.stem))
            self._waiting[int(path.stem)] = {update.key for update in left}
            if not left:
                self._settled.add(int(path.stem))
            self._append(
                {"accepted": update.sequence, **_named(update)}
                for update in updates
                if update.key not in known
            )
            waiting += left
        self._sequence = max([self._sequence, *(x.get("accepted", 0) for x in lines)])
        self.saved()
        return waiting

    def _file(self, sequence: int) -> Path:
        assert self._folder is not None
        return self._folder / ARRIVALS / f"{sequence:012d}.safetensors"

    def _append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        assert self._folder is not None
        if data := b"".join(as_json(dict(line)) for line in lines):
            with (self._folder / UPDATES).open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())


def read_updates(path: Path) -> list[dict[str, Any]]:
    """The lines of updates.jsonl; a last one that was cut short is left out."""
    lines = []
    for text in path.read_bytes().split(b"\n")[:-1]:
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def _named(update: BufferedUpdate) -> dict[str, Any]:
    named = {"node": update.node, "client": update.client, "tag": update.tag, "began": update.began}
    return {**named, "members": update.members} if update.members else named


def _key(line: Mapping[str, Any]) -> Key:
    return line["node"], line["client"], line["tag"]


def _to_bytes(updates: Sequence[BufferedUpdate]) -> bytes:
    """The updates of one answer, one after another."""
    first, own = updates[0], [update.update.parts["update"] for update in updates]
    facts = {
        "node": first.node,
        "tag": first.tag,
        "began": first.began,
        "sequence": first.sequence,
        "clients": [update.client for update in updates],
        "losses": [update.update.loss for update in updates],
        "members": [update.members for update in updates],
    }
    tensors = {
        "weights": torch.tensor([update.weight for update in updates], dtype=torch.float64),
        "steps": torch.tensor([update.update.steps for update in updates], dtype=torch.float64),
    }
    for table in own[0].rows:
        index = Index.of([x.index[table].ids for x in own])
        tensors |= {f"ids/{table}": index.ids, f"splits/{table}": index.splits}
        tensors[f"rows/{table}"] = torch.cat([x.rows[table] for x in own])
        if table in first.read:
            tensors[f"read/{table}"] = torch.cat([update.read[table] for update in updates])
        if first.update.marks is not None:
            marks = [(update.update.marks or {})[table] for update in updates]
            tensors[f"marks/{table}"] = torch.cat(marks)
    for name in own[0].dense:
        tensors[f"dense/{name}"] = torch.cat([x.dense[name] for x in own])
    return safetensors.torch.save(tensors, {"fedrows": json.dumps(facts)})


def _from_file(path: Path) -> list[BufferedUpdate]:
    """What `_to_bytes` has made of the updates of one answer."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["fedrows"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError, ValueError, KeyError) as error:
        raise RunFolderError(
            f"{path} is damaged: delete it to go on without the updates in it."
        ) from error
    parts: dict[str, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        kind, _, of = name.partition("/")
        parts.setdefault(kind, {})[of] = x
    index = {
        table: Index.of(ids.split(parts["splits"][table].diff().tolist()))
        for table, ids in parts.get("ids", {}).items()
    }
    submodels = Submodels(index, parts.get("rows", {}), parts.get("dense", {}))

    def own(kind: str, i: int) -> dict[str, Tensor]:
        """One client's entries of a column of every table."""
        splits = {table: x.splits for table, x in index.items()}
        return {t: x[splits[t][i] : splits[t][i + 1]] for t, x in parts.get(kind, {}).items()}

    return [
        BufferedUpdate(
            facts["node"],
            client,
            facts["tag"],
            facts["began"],
            facts["sequence"],
            float(tensors["weights"][i]),
            ClientUpdate(
                {"update": submodels.slice(i, i + 1)},
                float(tensors["steps"][i]),
                own("marks", i) if "marks" in parts else None,
                facts["losses"][i],
            ),
            own("read", i),
            tuple((node, name) for node, name in facts["members"][i]),
        )
        for i, client in enumerate(facts["clients"])
    ]

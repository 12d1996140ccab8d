"""A node's halves of secure sums, which outlive the process that began them.

    sums/newest           the number of the newest sum that was begun
    sums/NAME/half        the half's seed, and the requests it got
    sums/NAME/facts.json  what the first message said
    sums/NAME/inputs.npz  what the node puts into the sum
    sums/asked.npz        which rows the clients asked for: from a round's union to its update

All of it is there only while a round is under way. A sum's folder goes with its last message. If
that never comes, it goes with the next message that the node gets. What its clients hold back and
the rows of their local tables are the node's own, and not here.

A sum is begun once, for two sums of one vector under one name would show it. Names rise, so that it
is enough to remember the newest.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private, write_private
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.replay import Done, SavedHalf

C = TypeVar("C")
Arrays = dict[str, np.ndarray]
MakeHalf = Callable[[dict[str, Any], Arrays], ClientHalf[C]]


class NodeSums:
    """The sums that one node takes part in, in a folder that only its user may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private(folder)

    @property
    def newest(self) -> str:
        """The number of the newest sum that was begun, in 16 hexadecimal digits."""
        with suppress(OSError):
            return (self._folder / "newest").read_text("ascii")
        return "0" * 16

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Begins a sum; one that is not newer than all before is refused."""
        name = _checked(facts.get("sum"))
        if name[:16] <= self.newest:
            raise ProtocolError(
                f"Sum {name} is not newer than the newest that this node knows: a sum is never "
                "begun twice."
            )
        write_private(self._folder / "newest", name[:16].encode())
        self._clear(name)
        if facts.get("use") != "update":
            self.forget_asked()
        (self._folder / name).mkdir(mode=0o700)
        SavedHalf(self._folder / name / "half").begin()
        write_private(self._folder / name / "facts.json", json.dumps(dict(facts)).encode())

    def put_inputs(self, name: str, inputs: Arrays) -> None:
        """Keeps what goes into a sum until it is over."""
        write_private(self._folder / name / "inputs.npz", _packed(inputs))

    def inputs(self, name: str) -> Arrays:
        """What goes into a sum."""
        return self._read(self._folder / name / "inputs.npz", name)

    def advance(
        self, name: object, make: MakeHalf[C], request: bytes
    ) -> tuple[dict[str, Any], bytes | Done[C]]:
        """What the first message of a sum said, and the half's reply to the next request."""
        name = _checked(name)
        self._clear(name)
        place = self._folder / name
        try:
            facts = dict(json.loads((place / "facts.json").read_text("utf-8")))
        except (OSError, ValueError):
            raise ProtocolError(f"What sum {name} was about is lost: it drops out.") from None
        inputs = self.inputs(name)
        return facts, SavedHalf(place / "half").advance(lambda: make(facts, inputs), request)

    def end(self, name: str) -> None:
        """Forgets a sum."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def put_asked(self, name: str, asked: Arrays) -> None:
        """Keeps which rows the clients asked for in a union, until the round is over."""
        write_private(self._folder / "asked.npz", _packed({**asked, "name": np.array(name)}))

    def asked(self, name: str) -> Arrays:
        """Which rows the clients asked for in a union."""
        asked = self._read(self._folder / "asked.npz", name)
        if str(asked["name"]) != name:
            raise ProtocolError(f"What union {name} came to is lost: the node drops out.")
        return asked

    def forget_asked(self) -> None:
        """Forgets which rows the clients asked for."""
        (self._folder / "asked.npz").unlink(missing_ok=True)

    def _clear(self, name: str) -> None:
        """Forgets all sums but one: a server has one at a time."""
        for other in self._folder.iterdir():
            if other.is_dir() and other.name != name:
                shutil.rmtree(other, ignore_errors=True)

    def _read(self, path: Path, name: str) -> Arrays:
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError, KeyError, EOFError):
            raise ProtocolError(f"What sum {name} was about is lost: it drops out.") from None


def _checked(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{32}", name):
        raise FedrowsError("The message does not name a sum.")
    return name


def _packed(arrays: Arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()

"""A node's halves of secure sums, which outlive the process that began them.

    sums/newest           the number of the newest sum that was begun
    sums/expiry           after how many seconds without a message a sum is over, if not an hour
    sums/NAME/half        the half's seed, and the requests it got
    sums/NAME/facts.json  who takes part, as the first message said
    sums/NAME/work.json   what is added up: said by the first message, or by one before the vectors
    sums/NAME/inputs.npz  what the node puts into the sum, from then on
    sums/NAME/asked.npz   which rows the clients asked for, in a sum of updates
    sums/UNION.npz        the same, from the end of a round's union to the beginning of its update

Inputs of updates are there only while their round is under way. A sum's folder goes with its last
message, or with the first that the node refuses. If neither comes, it goes when the next sum of its
use adds up numbers (of unions, the next but one), when five newer sums have begun, when no message
has come for an hour (where rounds may take longer, for as long, but at most a day), or when the
node starts anew. A server has no more at a time: the updates of a round, the
unions of the next two, and the keys for the next updates and for the union behind. What a union
came to goes when its update takes it, or when two newer unions have ended. What clients hold back
and the rows of their local tables are the node's own, and not here.

What a power cut takes of this is a sum that the node drops out of, so only the newest number is on
the disk at once. A sum is begun once, for two sums of one vector under one name would show it.
Names rise, so that it is enough to remember the newest.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private, write_briefly, write_private
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.replay import Done, SavedHalf

EXPIRY, LONGEST = 3600.0, 86_400.0  # seconds
C = TypeVar("C")
AT_A_TIME = 5  # sums that may be under way
BEFORE = {"union": 1}  # how many sums of a use may add up numbers when another one begins to
ENDED = 2  # unions whose updates may be to come
Arrays = dict[str, np.ndarray]
MakeHalf = Callable[[dict[str, Any]], ClientHalf[C]]


def forget_sums(state: Path, older: float | None = None) -> None:
    """Deletes sums of any run that no message has reached for so many seconds, or for too long."""
    for sums in state.glob("*/sums/"):
        before = time.time() - (_expiry(sums) if older is None else older)
        for path in (*sums.glob("*/"), *sums.glob("*.npz")):
            with suppress(OSError):  # another process may be as far
                if path.stat().st_mtime <= before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _expiry(sums: Path) -> float:
    """After how many seconds without a message a sum is over."""
    with suppress(OSError, ValueError):
        return min(max(float((sums / "expiry").read_text("ascii")), EXPIRY), LONGEST)
    return EXPIRY


class NodeSums:
    """The sums that one node takes part in, in a folder that only its user may read.

    longest: how many seconds a round may take, if more than a few minutes.
    """

    def __init__(self, folder: Path, longest: float = 0.0) -> None:
        self._folder = folder
        make_private(folder)
        # A union's answers are kept until the update of its round, two rounds later.
        if (expiry := 3 * longest) > EXPIRY and _expiry(folder) != min(expiry, LONGEST):
            write_private(folder / "expiry", f"{min(expiry, LONGEST)}".encode())

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
        (self._folder / name).mkdir(mode=0o700)
        self._clear()
        SavedHalf(self._folder / name / "half").begin()
        write_briefly(self._folder / name / "facts.json", json.dumps(dict(facts)).encode())

    def begin_work(self, name: object, work: Mapping[str, Any]) -> dict[str, Any]:
        """Takes in what a sum adds up, which is said once; returns all facts of the sum."""
        name = _checked(name)
        facts, path = self.facts(name), self._folder / name / "work.json"
        if path.exists():
            raise ProtocolError(f"What sum {name} adds up was said before: it is not said twice.")
        self._clear_use(str(facts.get("use")), path.parent.name)
        write_briefly(path, json.dumps({**work, **facts}).encode())
        if facts.get("use") == "update":  # a union serves one sum of updates
            with suppress(FileNotFoundError):
                self._ended(work.get("union")).replace(self._folder / name / "asked.npz")
        return {**work, **facts}

    def facts(self, name: object) -> dict[str, Any]:
        """What is known of a sum: who takes part, and what is added up if that was said."""
        folder = self._folder / _checked(name)
        try:
            facts = dict(json.loads((folder / "facts.json").read_text("utf-8")))
            if (folder / "work.json").exists():
                facts = dict(json.loads((folder / "work.json").read_text("utf-8")))
        except (OSError, ValueError):
            raise ProtocolError(f"What sum {name} was about is lost: it drops out.") from None
        return facts

    def put_inputs(self, name: str, inputs: Arrays) -> None:
        """Keeps what goes into a sum until it is over."""
        write_briefly(self._folder / name / "inputs.npz", _packed(inputs))

    def inputs(self, name: str) -> Arrays:
        """What goes into a sum."""
        return self._read(self._folder / name / "inputs.npz", name)

    def advance(
        self, name: object, make: MakeHalf[C], request: bytes
    ) -> tuple[dict[str, Any], bytes | Done[C]]:
        """What is known of a sum, and the half's reply to the next request."""
        facts, folder = self.facts(name), self._folder / _checked(name)
        return facts, SavedHalf(folder / "half").advance(lambda: make(facts), request)

    def end(self, name: str) -> None:
        """Forgets a sum."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def put_asked(self, name: str, asked: Arrays) -> None:
        """Keeps which rows the clients asked for in a union, until the round's update begins."""
        write_briefly(self._ended(name), _packed({**asked, "name": np.array(name)}))
        for path in sorted(self._folder.glob("*.npz"))[:-ENDED]:
            path.unlink(missing_ok=True)

    def _ended(self, union: object) -> Path:
        """The file of what a union came to."""
        return self._folder / f"{_checked(union)}.npz"

    def asked(self, name: str, union: str) -> Arrays:
        """Which rows the clients asked for in a union, in the sum of updates that follows it."""
        asked = self._read(self._folder / name / "asked.npz", name)
        if str(asked["name"]) != union:
            raise ProtocolError(f"What union {union} came to is lost: the node drops out.")
        return asked

    def _clear(self) -> None:
        """Forgets all sums but the newest."""
        sums = sorted(path for path in self._folder.iterdir() if path.is_dir())
        for path in sums[:-AT_A_TIME]:
            shutil.rmtree(path, ignore_errors=True)

    def _clear_use(self, use: str, name: str) -> None:
        """Forgets sums of a use that add up numbers, and older ones, before `name` adds up its own.

        Keys that were exchanged ahead and never used would else crowd out a sum that is under way.
        """
        others = [path.parent for path in self._folder.glob("*/facts.json")]
        same = sorted(x for x in others if x.name != name and self._use_of(x) == use)
        works = [other for other in same if (other / "work.json").exists()]
        stay = works[-BEFORE[use] :] if use in BEFORE else []
        for other in same:
            if other not in stay and (other.name < name or other in works):
                shutil.rmtree(other, ignore_errors=True)

    def _use_of(self, folder: Path) -> object:
        return self.facts(folder.name).get("use")

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

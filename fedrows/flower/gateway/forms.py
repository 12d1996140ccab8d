"""What a device may send: its registration, its upload, and its part in a phase of a secure sum.

A form is plain JSON in the store, so the web process needs no model. The checks are those of the
server (`wire/upload_checks`): an upload that passes here is one that the server can read. What is
sent in a secure sum is sealed and signed by the protocol itself, whose server half checks it. Here
it is held to its size and to the phase that was asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.message import Message, WireError, unpack
from fedrows.flower.wire.submodels import SubmodelLayout
from fedrows.flower.wire.upload_checks import (
    ReceivedUpload,
    UploadRefused,
    finite_clients,
    read_upload,
    too_long,
)
from fedrows.rows.index import Index
from fedrows.rows.schema import Schema, Table

KEY = 32  # bytes of a public key
CODING = "float32"  # how devices send numbers
SUM = "sum"  # the kind of an answer to a phase, and of the work that asks for it
SILENT = "silent"  # the kind of an answer of a device that takes no further part
LARGEST_REGISTRATION = 2**20  # bytes


@dataclass(frozen=True)
class RegistrationForm:
    """What a program's registrations must look like.

    private: devices send neither rows nor a number of examples, but a key for secure sums.
    """

    tables: Mapping[str, int]  # shared table → its rows
    max_examples: int
    private: bool = False

    def text(self) -> str:
        """The form as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> RegistrationForm:
        """The form behind its JSON."""
        return cls(**json.loads(text))

    def check(self, data: bytes) -> tuple[int, dict[str, Tensor]]:
        """A device's number of examples and its ids by table, or a WireError."""
        message = unpack(data, LARGEST_REGISTRATION)
        examples = message.facts.get("examples")
        if self.private:
            return _check_private(message)
        if message.kind != "registration" or message.parts.keys() != {
            f"index/{table}" for table in self.tables
        }:
            raise WireError(
                "The registration does not have the index sets of the program's shared tables."
            )
        if type(examples) is not int or not 1 <= examples <= self.max_examples:
            raise WireError(f"The number of examples is not from 1 to {self.max_examples}.")
        return examples, {
            table: ids_from_bytes(message.parts[f"index/{table}"], rows, rows)
            for table, rows in self.tables.items()
        }


def key_in(data: bytes) -> bytes | None:
    """The public key in a registration that was checked; None if it has none."""
    return unpack(data, LARGEST_REGISTRATION).parts.get("key")


def _check_private(message: Message) -> tuple[int, dict[str, Tensor]]:
    """The same of a registration for a private run, which has a public key alone."""
    key = message.parts.get("key", b"")
    if message.kind != "registration" or message.parts.keys() != {"key"} or len(key) != KEY:
        raise WireError("The registration for a private run has not a public key alone.")
    if message.facts != {"examples": 1}:
        raise WireError("A registration for a private run tells how many examples there are.")
    return 1, {}


def version_of_registration(data: bytes) -> str:
    """What names a registration: the first half of the SHA-256 of its message."""
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True)
class UploadForm:
    """What the upload for one piece of work must look like."""

    tag: int
    rows: Mapping[str, int]  # shared table → rows that the device has of it
    widths: Mapping[str, int]
    dense: Mapping[str, list[int]]
    returns: list[str]
    marked: bool
    most_steps: int
    max_norm: float | None

    def text(self) -> str:
        """The form as JSON."""
        return json.dumps(asdict(self))

    @property
    def layouts(self) -> dict[str, SubmodelLayout]:
        """The layout of everything that is sent, by its name."""
        tables = {name: Table(self.rows[name], width) for name, width in self.widths.items()}
        schema = Schema(tables, {name: tuple(shape) for name, shape in self.dense.items()})
        index = {
            name: Index(torch.arange(count), torch.tensor([0, count]))
            for name, count in self.rows.items()
        }
        layout = SubmodelLayout(index, schema, CODING, torch.float32)
        return {"update": layout, **dict.fromkeys(self.returns, layout)}

    @property
    def most(self) -> int:
        """The most bytes that an upload may have."""
        size = sum(layout.most for layout in self.layouts.values()) + 4096
        return size + sum(count // 8 + 256 for count in self.rows.values()) * self.marked

    def check(self, data: bytes) -> ReceivedUpload:
        """The upload behind some bytes, or an UploadRefused."""
        received = read_upload(data, self.layouts, self.tag, self.most_steps, self.marked)
        if not bool(finite_clients(received.submodels).all()):
            raise UploadRefused("not finite", "a number that is not finite")
        bound = self.max_norm
        if bound is not None and bool(too_long(received.submodels["update"], None, bound).any()):
            raise UploadRefused("too long", f"an update longer than max-norm, {bound:g}")
        return received


@dataclass(frozen=True)
class PhaseForm:
    """The answer to one phase."""

    sum: str
    phase: int
    most: int  # bytes

    def text(self) -> str:
        """The form as JSON."""
        return json.dumps({"phase of": SUM, **asdict(self)})

    def check(self, data: bytes) -> bytes | None:
        """The reply, None of a device that takes no further part; or an UploadRefused."""
        try:
            message = unpack(data, self.most)
        except WireError as error:
            raise UploadRefused("not readable", str(error)) from None
        if message.kind == SILENT:
            return None
        facts = {"sum": self.sum, "phase": self.phase}
        if message.kind != SUM or message.facts != facts or message.parts.keys() != {"reply"}:
            raise UploadRefused("another phase", "an answer to another phase of a sum")
        return message.parts["reply"]


def read_form(text: str) -> UploadForm | PhaseForm:
    """The form behind its JSON."""
    facts = json.loads(text)
    if facts.pop("phase of", None) == SUM:
        return PhaseForm(**facts)
    return UploadForm(**facts)

"""What a device's answer to one phase of a secure sum must look like, and forms in general.

The content of an answer is sealed and signed by the protocol itself, whose server half checks it.
Here it is held to its size and to the phase that was asked for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fedrows.flower.gateway.forms import UploadForm
from fedrows.flower.wire.message import WireError, unpack
from fedrows.flower.wire.upload_checks import UploadRefused

SUM = "sum"  # the kind of an answer, and of the work that asks for it
SILENT = "silent"  # the kind of an answer of a device that takes no further part


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
    return UploadForm.read(text)

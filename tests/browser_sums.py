"""Client halves of secure sums that the browser's client plays, run by node."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from node_script import BrowserRefuses, NodeScript

from fedrows.privacy.keys import NodeKey
from fedrows.privacy.openings import Openings
from fedrows.privacy.terms import SumTerms


class BrowserSums(NodeScript):
    """The script that plays halves."""

    def __init__(self) -> None:
        super().__init__("sums.js")
        self._names = iter(range(10**9))

    def make(self, what: str, **given: Any) -> Any:
        """What a primitive gives."""
        return self.ask(make=what, **given)["made"]

    def half(
        self,
        terms: SumTerms,
        me: int,
        node: NodeKey,
        registry: Mapping[int, bytes],
        vector: Any = None,
        *,
        plan: Openings | None = None,
        part: Any = None,
        seed: bytes = b"",
    ) -> Generator[bytes, bytes, Any]:
        """A client half of a sum; with `plan`, one with minimum contributors."""
        name = f"half {next(self._names)}"
        agreed = {
            "name": terms.name, "cohort": list(terms.cohort), "threshold": terms.threshold,
            "length": terms.length, "word": terms.word, "colluding": terms.colluding,
            "openers": terms.openers, "about": terms.about,
        }  # fmt: skip
        given: dict[str, Any] = {"terms": agreed, "me": me, "seed": seed.hex()}
        given |= {"secret": node.secret.hex()}
        given["registry"] = {str(one): key.hex() for one, key in registry.items()}
        if plan is None:
            given["vector"] = vector.tobytes().hex()
        else:
            values, holds, extra = part
            given |= {"plan": plan_of(plan), "holds": holds.astype(int).tolist()}
            given |= {"values": values.tobytes().hex(), "extra": extra.tobytes().hex()}
        self.ask(begin=name, **given)
        request, phase = b"", 0
        while True:
            answer = self.ask(ask=name, phase=phase, request=request.hex())
            if answer["reply"] is None:
                sent = answer["sent"]
                return None if sent is None else np.array(sent, dtype=bool)
            request = yield bytes.fromhex(answer["reply"])
            phase += 1


def plan_of(plan: Openings) -> dict[str, Any]:
    """A plan as the browser's client has it: every table's rows, and the pieces of a row."""
    tables = [{"rows": plan.rows, "pieces": 1}]
    if plan.families is not None:
        groups = plan.families.group
        tables = [
            {"rows": int((groups == g).sum()), "pieces": int(plan.families.pieces[groups == g][0])}
            for g in np.unique(groups)
        ]
    return {
        "rows": plan.rows, "width": plan.width, "minimum": plan.minimum, "extra": plan.extra,
        "openers": plan.openers, "word": plan.word, "parties": len(plan.cohort),
        "turn": plan.turn, "tables": tables,
    }  # fmt: skip


@pytest.fixture(scope="module")
def browser_sums() -> Iterator[BrowserSums]:
    """The script, for all tests of a module."""
    script = BrowserSums()
    yield script
    script.close()


__all__ = ["BrowserRefuses", "BrowserSums", "browser_sums"]

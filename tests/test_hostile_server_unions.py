"""A server that makes up the union of a round, or a round in which one client alone has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

import test_hostile_server_sums as by_hand
from deployed import shards_of
from test_hostile_server_sums import INDEX, ONE, ByHand

from fedrows.privacy import secure_sum, union
from fedrows.privacy.row_space import RowSpace

EXACT: dict[str, Any] = INDEX | {"index-epsilon": "", "index-epsilon-for-ever": ""}


class MakesUp(ByHand):
    """Tells nodes a union of its own choice; clients ask for exactly their rows of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(by_hand, "INDEX", EXACT)
        super().__init__(folder, dict.fromkeys((1, 2, 3, 4), EXACT))
        self.patch = monkeypatch

    def own_rows(self) -> dict[int, np.ndarray]:
        """The rows of the clients that are asked, by node."""
        shards, found = shards_of(self.data, 4), {}
        for node, name in self.parties.items():
            at = ONE[int(node)][0]
            index = {t: x.slice(at, at + 1) for t, x in shards[name].index.items()}
            found[int(node)] = self.space.places(index)
        return found

    def made_up(self, rows: np.ndarray) -> np.ndarray | None:
        """A union of these rows, whatever the nodes have put into it."""

        def server(terms: Any, plan: Any, registry: Any) -> Any:
            total = yield from secure_sum.server(terms, registry)
            yield dict.fromkeys(total.answering, rows.astype("<u4").tobytes())
            return union.UnionResult(rows, total)

        self.patch.setattr(union, "server", server)
        return self.union(ONE)

    def victims(self) -> np.ndarray:
        """The rows of node 1 that no other client has who is asked."""
        own = self.own_rows()
        rows = np.setdiff1d(own[1], np.concatenate([own[2], own[3], own[4]]))
        assert len(rows)
        return rows

    def believed(self, rows: np.ndarray) -> None:
        """Nodes believe any union, as they did once."""
        self.patch.setattr(RowSpace, "check_union", lambda *_: None)
        assert self.made_up(rows) is not None
        assert {answer.kind for answer in self.answers.values()} == {"sum"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakesUp:
    return MakesUp(tmp_path, monkeypatch)


def test_a_union_without_a_nodes_own_rows_is_refused(server: MakesUp) -> None:
    """On the rows of one client, that client alone would train."""
    server.made_up(server.victims())
    kinds = {node: answer.kind for node, answer in server.answers.items()}
    assert kinds == {1: "silent", 2: "silent", 3: "silent", 4: "silent"}
    whole = np.unique(np.concatenate(list(server.own_rows().values())))
    server.made_up(whole)
    assert {answer.kind for answer in server.answers.values()} == {"sum"}
    lacking = whole[whole != server.victims()[0]]
    server.made_up(lacking)
    assert [node for node, answer in server.answers.items() if answer.kind == "silent"] == [1]


def test_what_one_client_alone_has_trained_is_not_opened(server: MakesUp) -> None:
    """Neither its dense numbers nor its loss, also if nodes believe any union."""
    server.believed(server.victims())
    opened = server.update(ONE)
    assert opened is not None
    assert not opened.extra.any()
    assert not any(rows.any() for _, rows in opened.rows.values())


def test_what_two_clients_have_trained_is_opened(server: MakesUp) -> None:
    """So the test above can fail: it is the number of contributors that decides."""
    own = server.own_rows()
    shared = np.intersect1d(own[1], own[2])
    server.believed(shared[:1])
    asked = [node for node, rows in server.asked.items() if len(rows)]
    opened = server.update(ONE)
    assert len(asked) >= 2
    assert opened.extra[0] == pytest.approx(len(asked), abs=1e-5)
    assert opened.extra[-1] != 0


def test_clients_without_a_row_hide_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all clients but one that are asked hold nothing, the union would be that one's rows."""
    server, true = MakesUp(tmp_path, monkeypatch), RowSpace.places
    own = server.own_rows()[1]

    def places(space: RowSpace, index: Any) -> np.ndarray:
        found = true(space, index)
        return found if np.array_equal(found, own) else found[:0]

    monkeypatch.setattr(RowSpace, "places", places)
    assert server.union(ONE) is None
    kinds = {node: answer.kind for node, answer in server.answers.items()}
    assert {kinds[node] for node in (2, 3, 4)} == {"silent"}


def test_a_union_out_of_order_is_refused(server: MakesUp) -> None:
    whole = np.unique(np.concatenate(list(server.own_rows().values())))
    for rows in (whole[::-1], np.append(whole, server.space.rows), np.append(whole, whole[-1])):
        server.made_up(rows)
        assert {answer.kind for answer in server.answers.values()} == {"silent"}

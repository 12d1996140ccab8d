"""A fleet whose clients show the server as little as a mode of privacy allows.

    heat          counted once, in the chosen way, and written to the ledger
    open_round    what each client asks for: its answers over the private union of the cohort
    train         every client trains on what it has at hand; the server is left with one upload,
                  the mean over the union, as of a single client with everybody's weight

What is not opened stays with its client and is added to its next upload. A round in which a
protocol fails closed has no upload, and the model stays where it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.errors import RunFolderError
from fedrows.fleet import NO_TRAFFIC, OpenRound, Traffic, clear_traffic
from fedrows.privacy.accounts import Accounts
from fedrows.privacy.central import draw_cohort, private_heat
from fedrows.privacy.counting import heats
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.ledger import Entry
from fedrows.privacy.options import Privacy
from fedrows.privacy.randomness import fresh, replaying
from fedrows.private.asking import Asked, Asking
from fedrows.private.held import HeldBack
from fedrows.private.means import Mean, NoisyMean, Sending, WeightedMean
from fedrows.private.training import Trained, shared, trained
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.simulator.simulated import SimulatedFleet, SimulatedRound

Drop = Callable[[int, str], Mapping[int, int]]  # round, union or update → client → silent from
Seed = Callable[[int], bytes]  # use → what its secrets follow from


@dataclass
class Told:
    """What the last round came to, for metrics and reports."""

    left_out_share: float | None = None  # of the cohort's examples, for want of a row
    opened_share: float | None = None  # of the union's rows


class PrivateFleet:
    """A simulated fleet behind a mode of privacy.

    `drop` makes clients fall silent in the protocols, and `seed` makes a run repeat its secrets;
    both are for tests: a seed that somebody knows protects nobody.
    """

    least = 0  # a round that fails is left out

    def __init__(
        self,
        inner: SimulatedFleet,
        privacy: Privacy,
        drop: Drop | None = None,
        seed: Seed | None = None,
    ) -> None:
        privacy.check(inner.algorithm, inner.plan.clients_per_round)
        self.inner, self.privacy = inner, privacy
        data, schema, plan = inner.data, inner.model.schema, inner.plan
        self.accounts = Accounts(privacy, plan.clients_per_round, inner.clients)
        self.told, self.notes = Told(), inner.notes
        self._drop, self._seed = drop or (lambda _, __: {}), seed
        self._widths = {t: its.width for t, its in schema.tables.items() if t not in data.local}
        self._held = HeldBack(self._widths)
        self._nodes = _Nodes()
        self._run = os.urandom(8).hex()  # names of rounds must never serve twice
        self._next = 1  # round
        self._heat: dict[str, Heat] | None = None
        self._mean: WeightedMean | NoisyMean | None = None
        self._asking: Asking | None = None
        if privacy.secret_sums:
            self._asking = Asking(data, privacy, self._nodes, fresh)
            for table in self._widths:
                self.accounts.know_(table, data.index[table], self._asking.values[table])
            if privacy.secure_sum == "arithmetic":
                self.notes.append("Sums are made by arithmetic, without masks: for research only.")

    @property
    def clients(self) -> int:
        return self.inner.clients

    @property
    def weights(self) -> Tensor:
        return self.inner.weights

    @property
    def kept(self) -> Submodels | None:
        """What clients keep for the algorithm."""
        return self.inner.kept

    def gather(self) -> None:
        """Nobody comes or goes, so heat never changes: a single joiner would show its set."""

    def draw(self, counter: int, count: int) -> Tensor:
        """The clients of a round; drawn in secret where the model's ε counts on that."""
        central = self.privacy.central
        if central is None:
            return self.inner.draw(counter, count)
        with self._secrets("cohort"):
            return draw_cohort(central, self.clients, count, fresh)

    def heat(self) -> Mapping[str, Heat]:
        counted = self.prepare()
        if self.privacy.central is None:
            return counted
        # Clients have corrected their updates already: nothing is left to correct.
        none = torch.empty(0, dtype=torch.int64, device=self.inner.device)
        return {table: Heat(none, none.to(torch.float64), 1.0) for table in self._widths}

    def prepare(self) -> Mapping[str, Heat]:
        """The heat behind all corrections, counted when it is first asked for.

        Whether the numbers of a sum fit into its words is found out here, before any round.
        """
        if self._heat is None:
            with self._secrets("heat"):
                self._heat = self._count()
        if self._asking is not None and self._mean is None:
            central, args = self.privacy.central, (self.inner, self.privacy, self._widths)
            if central is None:
                least = self.privacy.least(self.inner.plan.clients_per_round)
                self._mean = WeightedMean(*args, self._heat, least, self._held)
            else:
                self._mean = NoisyMean(*args, self._heat, central)
        return self._heat

    def open_round(self, round_: Round) -> OpenRound:
        inner = self.inner.open_round(round_)
        if self._asking is None:
            self._next = round_.number + 1
            return inner
        held, names = inner.index, round_.cohort.tolist()
        with self._secrets("union"):
            asked = self._asking.ask(
                names,
                held,
                self._name,
                self.privacy.least(len(names)),
                self._drop(self._next, "union"),
            )
        self.accounts.answered_(
            self._next, (one for one, there in zip(names, asked.there, strict=True) if there)
        )
        own = {table: its.to(self.inner.device) for table, its in asked.index.items()}
        index = {table: own.get(table, its) for table, its in held.items()}
        return PrivateRound(self, inner, asked, index)

    def trained(
        self, inner: SimulatedRound, asked: Asked, start: Submodels, sent: Submodels | None
    ) -> tuple[Upload, Traffic]:
        """What the server is left with after a round, and the bytes of it."""
        assert self._mean is not None
        cohort, round_, stages = inner.round.cohort, inner.round, self.privacy.stages
        keep = 1.0 if stages is None else stages.keep_probability
        made = trained(inner, start, sent, asked, keep)
        sending = Sending(
            cohort.tolist(),
            shared(made.update, self._widths),
            made.active,
            self.weights[cohort].numpy(),
            asked,
            self._name,
            self.privacy.least(len(cohort)),
            self._nodes,
            self._drop(round_.number, "update"),
        )
        with self._secrets("update"):
            mean = self._mean.send(sending, fresh)
        self._tell(made, asked, mean)
        self._next = round_.number + 1
        upload = _upload(cohort, start, made, mean)
        schema, local = self.inner.model.schema, self.inner.data.local
        rows = clear_traffic(schema, local, start, sent, upload).down
        down = rows + asked.bytes_down + mean.opened.bytes_down
        return upload, Traffic(down, asked.bytes_up + mean.opened.bytes_up)

    def exceeds(self) -> str:
        """Why the next round must not be run; nothing if it may."""
        self.prepare()
        return self.accounts.exceeds(self._next)

    def line(self) -> dict[str, Any]:
        """What a line of metrics.jsonl says of privacy."""
        found: dict[str, Any] = {"epsilon": self.accounts.line()}
        if self._asking is not None:
            found["left_out_share"] = self.told.left_out_share
            found["opened_share"] = self.told.opened_share
            found["held_back_rows"] = len(self._held)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that later rounds depend on, of whatever shape it has by now."""
        found = self._held.tensors()
        for table, heat in self.prepare().items():
            found[f"heat/{table}/id"] = heat.ids.cpu()
            found[f"heat/{table}/count"] = heat.counts.cpu()
            found[f"heat/{table}/total"] = torch.tensor(heat.total, dtype=torch.float64)
        return found

    def state(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        return {**self.accounts.state(), "told": asdict(self.told)}

    def restore_(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Any], round_: int
    ) -> None:  # fmt: skip
        """Goes back to where `tensors` and `state` were taken; nothing is counted anew."""
        if self.privacy.stages is not None and self.privacy.answers is None and round_:
            raise RunFolderError(
                "The clients' permanent answers were in memory only, and answering anew would "
                "spend anew: give a folder for them with `answers`."
            )
        self._next = round_ + 1
        self.accounts.restore_(state)
        self.told = Told(**state["told"])
        self._held.restore_(tensors)
        self._heat = {}
        device = self.inner.device
        for table, index in self.inner.data.index.items():
            if f"heat/{table}/id" not in tensors:
                continue
            ids, counts = (tensors[f"heat/{table}/{x}"].to(device) for x in ("id", "count"))
            if index.held is not None and torch.equal(index.held, ids):
                ids = index.held  # which makes looking up quick
            self._heat[table] = Heat(ids, counts, float(tensors[f"heat/{table}/total"]))

    def _count(self) -> dict[str, Heat]:
        data, central = self.inner.data, self.privacy.central
        if central is None:
            counted = heats(data, self.inner.plan.weighting, self.privacy.counting, fresh)
            for table, its in counted.items():
                self.accounts.ledger.add_(*its.entries(table))
            local = {t: x for t, x in self.inner.heat().items() if t in data.local}
            return {**{table: its.heat for table, its in counted.items()}, **local}
        found, privacy = {}, self.privacy
        for table in self._widths:
            dials = privacy.dp_heat_noise, privacy.dp_heat_rows, privacy.heat_z
            noisy = private_heat(data.index[table], self.weights, central, *dials, fresh)
            found[table], entry = noisy
            name = f"heat of {table}"  # the server sees its exact total before the noise
            self.accounts.ledger.add_(
                replace(entry, mechanism=name), Entry("totals/value", name, 0, math.inf)
            )
        return found

    def _tell(self, made: Trained, asked: Asked, mean: Mean) -> None:
        opened, told, number = mean.opened, self.told, self._next
        union = sum(len(ids) for ids in asked.union.values())
        shown = sum(int(marks.sum()) for marks, _ in opened.rows.values())
        told.left_out_share = made.left_out_share
        told.opened_share = shown / union if union else None
        if why := asked.failed or opened.failed:
            self.notes.append(f"Round {number} was left out: {why}")
        for one, why in opened.left_out.items():
            self.notes.append(f"Round {number} went on without client {one}: {why}")

    @property
    def _name(self) -> str:
        return f"run {self._run}, round {self._next}"

    def _secrets(self, use: str) -> AbstractContextManager[None]:
        if self._seed is None:
            return nullcontext()
        uses = ("heat", "cohort", "union", "update")
        return replaying(self._seed(len(uses) * self._next * (use != "heat") + uses.index(use)))


@dataclass
class PrivateRound:
    """A round whose cohort has asked for rows over its private union."""

    fleet: PrivateFleet
    inner: SimulatedRound
    asked: Asked
    index: Mapping[str, Index]
    traffic: Traffic = NO_TRAFFIC

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        upload, self.traffic = self.fleet.trained(self.inner, self.asked, start, sent)
        return upload


class _Nodes(dict[int, NodeKey]):
    """A key for every client, made when it is first needed."""

    def __missing__(self, client: int) -> NodeKey:
        self[client] = NodeKey(os.urandom(32))
        return self[client]


def _upload(cohort: Tensor, start: Submodels, made: Trained, mean: Mean) -> Upload:
    """The mean as the upload of one client with everybody's weight."""
    if mean.rows is None or mean.dense is None:
        nothing = torch.ones(0, dtype=torch.float64)
        return Upload(cohort[:0], Submodels({}, {}, {}), nothing, {}, None)
    in_it = torch.from_numpy(mean.opened.clients)
    index, rows = {}, {}
    for table, like in start.rows.items():
        if table in mean.rows:
            ids, values = mean.rows[table]
            index[table] = Index(ids.to(like.device), torch.tensor([0, len(ids)]))
            rows[table] = values.to(like)
        else:  # local: every client keeps its own rows
            its = made.update.index[table]
            mine = in_it[its.owner.cpu()].to(like.device)
            index[table] = Index(its.ids[mine], torch.tensor([0, int(mine.sum())]))
            rows[table] = made.update.rows[table][mine]
    dense = {name: x.to(start.dense[name])[None] for name, x in mean.dense.items()}
    weight = torch.tensor([mean.weight], dtype=torch.float64)
    steps = made.steps.max().reshape(1)
    return Upload(cohort[in_it], Submodels(index, rows, dense), steps, {}, None, weight)

"""A simulated fleet whose clients show the server as little as a mode of privacy allows.

    heat         counted once, in the chosen way, and written to the ledger
    open_round   finds the rows that each client asks for, over the private union of the cohort
    train        every client trains on what it has at hand; the server is left with one upload,
                 the mean over the union, as of a single client with everybody's weight

What is not opened stays with its client and is added to its next upload. A round in which a
protocol fails closed has no upload, and the model stays where it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.data.batches import LocalData
from fedrows.errors import RunFolderError
from fedrows.fleet import NO_TRAFFIC, OpenRound, Traffic, clear_traffic
from fedrows.privacy.accounts import Accounts, Releasable
from fedrows.privacy.answers import Asking
from fedrows.privacy.client_side import AskedTraining, local_rows, shared_update, train_on_asked
from fedrows.privacy.counting import values_of
from fedrows.privacy.distributed_mean import DistributedMean
from fedrows.privacy.heat_of_mode import heat_from_tensors, heat_of_mode, heat_tensors
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.in_memory import (
    ClientKeys,
    InMemoryProtocols,
    SumOutcome,
    SumVectors,
    UnionOutcome,
)
from fedrows.privacy.layout import Contribution, PartyVectors, SumLayout
from fedrows.privacy.mechanism import draw_cohort
from fedrows.privacy.noisy_mean import NoisyMean
from fedrows.privacy.options import Privacy
from fedrows.privacy.randomness import fresh, replaying
from fedrows.privacy.relations import check_declared, warning
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.server_side import SumMechanism, pseudo_upload, union_plan
from fedrows.privacy.weighted_mean import ClientUpdates, Mean, WeightedMean
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.simulator.simulated_fleet import SimulatedFleet, SimulatedRound

Drop = Callable[[int, str], Mapping[int, int]]  # round, union or update → client → silent from
Seed = Callable[[int], bytes]  # use → what its secrets follow from
MakeVectors = Callable[[SumLayout, Contribution], SumVectors]


@dataclass
class PrivateReport:
    """What the last round came to, for metrics and reports."""

    left_out_share: float | None = None  # of the cohort's examples, for want of a row
    opened_share: float | None = None  # of the union's rows


class PrivateSimulatedFleet:
    """A simulated fleet behind a mode of privacy.

    `drop` makes clients fall silent in the protocols, and `seed` makes a run repeat its secrets;
    both are set by tests: a seed that somebody knows protects nobody.
    """

    least = 0  # a round that fails is left out

    def __init__(self, inner: SimulatedFleet, privacy: Privacy) -> None:
        privacy.check(inner.algorithm, inner.plan.clients_per_round)
        self.inner, self.privacy = inner, privacy
        data, tables, plan = inner.data, inner.model.schema.tables, inner.plan
        self.accounts = Accounts(privacy, plan.clients_per_round, inner.clients)
        self.report, self.notes = PrivateReport(), inner.notes
        self.widths = {t: kind.width for t, kind in tables.items() if t not in data.local}
        self.space = RowSpace({table: tables[table].rows for table in self.widths})
        self.held = HeldBack(self.widths)
        self.keys = ClientKeys()
        self.drop: Drop = lambda round_, use: {}
        self.seed: Seed | None = None
        self._run = os.urandom(8).hex()  # names of rounds must never serve twice
        self._next = 1  # round
        self._heat: dict[str, Heat] | None = None
        self._mechanism: tuple[SumMechanism, MakeVectors] | None = None
        self._values = values = {table: values_of(data, table) for table in self.widths}
        path, coins = _answer_path(privacy), privacy.coins
        self.asking = Asking(self.space, privacy.stages, values, path, fresh, coins)
        if privacy.secret_sums:
            for table in self.widths:
                self.accounts.know_(table, data.index[table], values[table])
            if privacy.min_contributors > 1:
                check_declared(data, values)
                self.notes += filter(None, [warning(data)])
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
        mechanism = self.privacy.mechanism
        if mechanism is None:
            return self.inner.draw(counter, count)
        with self.secrets("cohort"):
            return draw_cohort(mechanism, self.clients, count, fresh)

    def heat(self) -> Mapping[str, Heat]:
        counted = self.prepare()
        if self.privacy.mechanism is None:
            return counted
        # Clients have corrected their updates already: nothing is left to correct.
        none = torch.empty(0, dtype=torch.int64, device=self.inner.device)
        return {table: Heat(none, none.to(torch.float64), 1.0) for table in self.widths}

    def prepare(self) -> Mapping[str, Heat]:
        """The heat behind all corrections, counted when it is first asked for.

        Whether the numbers of a sum fit into its words is found out here, before any round.
        """
        if self._heat is None:
            with self.secrets("heat"):
                self._heat = self._count_heat()
        if self.privacy.secret_sums and self._mechanism is None:
            self._mechanism = self._chosen(self._heat)
        return self._heat

    def open_round(self, round_: Round) -> OpenRound:
        inner = self.inner.open_round(round_)
        self._next = round_.number
        if not self.privacy.secret_sums:
            self._next += 1
            return inner
        self.prepare()
        assert self._mechanism is not None
        cohort = round_.cohort.tolist()
        carrier = InMemoryProtocols(self.privacy, self.keys, cohort, self._name, self._next)
        sets = {
            client: self.space.places({t: inner.index[t].slice(k, k + 1) for t in self.widths})
            for k, client in enumerate(cohort)
        }
        with self.secrets("union"):
            united = self._united(carrier, sets)
            through = [
                client for client, present in zip(cohort, united.present, strict=True) if present
            ]
            self.accounts.answered_(self._next, through)  # before anything is shown
            wanted = [
                self.asking.wanted(client, united.places, sets[client])
                if present
                else np.empty(0, int)
                for client, present in zip(cohort, united.present, strict=True)
            ]
        if self.privacy.stages is None:
            united.bytes_up += 4.0 * sum(map(len, wanted))
        else:
            united.bytes_up += united.present.sum() * -(-len(united.places) // 8)
        asked = self.space.index(wanted)
        own = {table: part.to(self.inner.device) for table, part in asked.items()}
        index = {table: own.get(table, part) for table, part in inner.index.items()}
        return PrivateSimulatedRound(self, inner, carrier, united, asked, index, *self._mechanism)

    def _united(self, carrier: InMemoryProtocols, sets: Mapping[int, np.ndarray]) -> UnionOutcome:
        """The rows that a cohort may ask for."""
        if self.privacy.noise_in_sum:
            return carrier.all_rows(self.space.rows)
        plan = union_plan(self.privacy, self.space, len(sets), self.largest_set, self._name)
        return carrier.unite(plan, sets, self.drop(self._next, "union"))

    @cached_property
    def largest_set(self) -> int:
        """The most rows that one client holds, all shared tables together."""
        index = self.inner.data.index
        sizes = torch.zeros(1, dtype=torch.int64)
        return int(sum((index[table].lengths for table in self.widths), start=sizes).max())

    def finish_(
        self, open_: PrivateSimulatedRound, training: AskedTraining, sum_: SumOutcome
    ) -> None:
        """Takes note of what a round came to."""
        union = len(open_.united.places)
        shown = sum(int(marks.sum()) for marks, _ in sum_.opened.rows.values())
        opened_share = shown / union if union and sum_.opened.rows else None
        self.report = PrivateReport(training.left_out_share, opened_share)
        number = open_.inner.round.number
        if why := open_.united.failed or sum_.failed:
            self.notes.append(f"Round {number} was left out: {why}")
        for client, why in sum_.left_out.items():
            self.notes.append(f"Round {number} went on without client {client}: {why}")
        self._next = number + 1

    def exceeds(self) -> str:
        """Why the next round must not be run; nothing if it may."""
        self.prepare()
        return self.accounts.exceeds(self._next)

    def line(self) -> dict[str, Any]:
        """What a line of metrics.jsonl says of privacy."""
        line: dict[str, Any] = {"epsilon": self.accounts.line()}
        if self.privacy.secret_sums:
            line |= {**asdict(self.report), "held_back_rows": len(self.held)}
        return line

    def keep_ledger_(self, path: Path, round_: int) -> None:
        """Keeps the ledger in a file, on the disk before what it pays for is released."""
        self.prepare()
        self.accounts.keep_in_(path, round_)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that later rounds depend on, of whatever shape it has by now."""
        return {**self.held.tensors(), **heat_tensors(self.prepare())}

    def releasable(self) -> Releasable | None:
        """What may leave the run beside the model; None if its model has no ε."""
        if self.privacy.mechanism is None:
            return None
        return self.accounts.releasable(tuple(self.widths), heat_tensors(self.prepare()))

    def state(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        return {**self.accounts.state(), "report": asdict(self.report)}

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
        self.report = PrivateReport(**state["report"])
        self.held.restore_(tensors)
        self._heat = heat_from_tensors(tensors, self.inner.data.index, self.inner.device)

    def _chosen(self, heat: Mapping[str, Heat]) -> tuple[SumMechanism, MakeVectors]:
        """The mechanism of the mode, and how its vectors are made."""
        inner, cohort = self.inner, self.inner.plan.clients_per_round
        shared = {table: heat[table] for table in self.widths}
        dense = {name: tuple(shape) for name, shape in inner.model.schema.dense.items()}
        if self.privacy.mechanism is None:
            values = self._values if self.privacy.min_contributors > 1 else None
            mean = WeightedMean(self.widths, dense, self.privacy.update_range, False, values)
            largest, least = inner.algorithm.largest_correction(shared), self.privacy.least(cohort)
            coding = mean.coding(self.weights.numpy(), cohort, least, largest)
            return mean, partial(PartyVectors, coding=coding)
        mechanism, tables = self.privacy.mechanism, (self.widths, dense, self.space.sizes)
        if self.privacy.noise_in_sum:
            inside = DistributedMean(mechanism, *tables, inner.algorithm, shared, cohort, fresh)
            return inside, inside.vectors
        noisy = NoisyMean(mechanism, *tables, inner.algorithm, shared, cohort, fresh)
        most = {table: int(inner.data.index[table].lengths.max()) for table in self.widths}
        return noisy, partial(PartyVectors, coding=noisy.coding(most))

    def _count_heat(self) -> dict[str, Heat]:
        """The heat of every shared table as the mode has it counted, and exactly that of others."""
        data, weighting = self.inner.data, self.inner.plan.weighting
        counted, entries = heat_of_mode(self.privacy, data, weighting, fresh)
        self.accounts.spend_(0, entries)
        local = {t: x for t, x in self.inner.heat().items() if t in data.local}
        return counted if self.privacy.mechanism is not None else {**counted, **local}

    @property
    def _name(self) -> str:
        return f"run {self._run}, round {self._next}"

    def secrets(self, use: str) -> AbstractContextManager[None]:
        """Where the secrets of one use in the coming round come from."""
        if self.seed is None:
            return nullcontext()
        uses = ("heat", "cohort", "union", "update")
        return replaying(self.seed(len(uses) * self._next * (use != "heat") + uses.index(use)))


@dataclass
class PrivateSimulatedRound:
    """A round whose cohort has asked for rows over its private union."""

    fleet: PrivateSimulatedFleet
    inner: SimulatedRound
    carrier: InMemoryProtocols
    united: UnionOutcome
    asked: Mapping[str, Index]  # of the shared tables, on the CPU
    index: Mapping[str, Index]
    mechanism: SumMechanism
    vectors: MakeVectors
    traffic: Traffic = NO_TRAFFIC

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        fleet, round_ = self.fleet, self.inner.round
        training = self._trained(start, sent)
        with fleet.secrets("update"):
            layout, sum_ = self._summed(training)
            in_it = torch.from_numpy(sum_.inside)
            mean = self._mean(sum_, layout, round_.cohort[in_it])
        fleet.finish_(self, training, sum_)
        dtype, device = fleet.inner.plan.torch_dtype, fleet.inner.device
        local = local_rows(training, fleet.inner.data.local, in_it)
        upload = pseudo_upload(round_.cohort[in_it], mean, dtype, device, local)
        schema = fleet.inner.model.schema
        rows = clear_traffic(schema, fleet.inner.data.local, start, sent, upload).down
        self.traffic = Traffic(
            rows + self.united.bytes_down + sum_.bytes_down, self.united.bytes_up + sum_.bytes_up
        )
        return upload

    def _mean(self, sum_: SumOutcome, layout: SumLayout, clients: Tensor) -> Mean | None:
        """What the server makes of the sum of these clients."""
        fleet = self.fleet
        if not len(clients):
            return None
        mean = self.mechanism.mean(sum_.opened, layout)
        own, heat = fleet.weights[clients], fleet.prepare()
        return self.mechanism.bounded(mean, own, fleet.inner.algorithm, heat)

    def _trained(self, start: Submodels, sent: Submodels | None) -> AskedTraining:
        """Trains the cohort on the rows that it has asked for."""
        fleet, round_ = self.fleet.inner, self.inner.round

        def train(local: LocalData, own: Submodels, more: Submodels | None) -> Upload:
            cut = None if local.slots is fleet.data.slots else local
            return fleet.trained(local.clients, own, more, round_, cut)

        present = torch.from_numpy(self.united.present)
        return train_on_asked(fleet.data, round_.cohort, self.asked, present, start, sent, train)

    def _summed(self, training: AskedTraining) -> tuple[SumLayout, SumOutcome]:
        """The secure sum of what the cohort has made."""
        fleet, round_ = self.fleet, self.inner.round
        names = round_.cohort.numpy()
        updates = ClientUpdates(
            shared_update(training, fleet.space.tables, fleet.privacy.keep_probability),
            fleet.weights[round_.cohort[training.clients]].numpy(),
            training.clients.numpy(),
            names,
            np.zeros(len(training.clients)),
        )
        union = fleet.space.by_table(self.united.places)
        layout = self.mechanism.layout(union)
        sent = self.mechanism.contribute(updates, union, fleet.held)
        drop = fleet.drop(round_.number, "update")
        sum_ = self.carrier.add_up(self.vectors(layout, sent), self.united.present, drop)
        self.mechanism.keep_(fleet.held, sent, names, layout, sum_.gone, sum_.sent, sum_.heard)
        return layout, sum_


def _answer_path(privacy: Privacy) -> Callable[[int | str, str], Path] | None:
    """Where permanent answers are kept, if a folder was given."""
    if privacy.answers is None:
        return None
    folder = Path(privacy.answers)
    return lambda client, table: folder / table / f"{client}.npz"

"""The round loop: sample K clients, send submodels, add up their updates, step.

`rounds` is a generator: the caller owns the loop, the printing, the saving and the stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fedrows.algorithm import Algorithm, Round, State
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.fleet import Fleet
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.robust import RowClip
from fedrows.rows.params import Params, Submodels, index_add_, take, total
from fedrows.tables import SparseTable, TableFolder

ATTEMPT = 2**40  # more than there are rounds: a repeated round draws another cohort


@dataclass
class Progress:
    """Where a run stands after some round; the model is the run's own, not a copy.

    Lazy algorithms leave rows behind, so read the model through `whole`.
    """

    round: int
    params: Params
    state: State
    algorithm: Algorithm
    local: frozenset[str] = frozenset()  # tables whose rows stay on their client
    table_folder: TableFolder | None = None  # where mapped tables are kept
    row_clip: RowClip | None = None  # bounds how far one client moves a row
    bytes_down: float = 0.0  # of the last round, mean over its clients
    bytes_up: float = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model and of the server's state, by a name of its own; not copies.

        Tables that are not in memory are in the table folder, and not here.
        """
        tensors: dict[str, Tensor] = {}
        for part, params in {"model": self.params, **self.state}.items():
            tensors |= {f"{part}/table/{name}": x for name, x in params.tables.items()}
            tensors |= {f"{part}/dense/{name}": x for name, x in params.dense.items()}
        if self.row_clip is not None:
            tensors |= {f"row-clip/{name}": x for name, x in self.row_clip.windows.items()}
        return {name: x for name, x in tensors.items() if not isinstance(x, SparseTable)}

    def whole(self) -> Params:
        """The model with every row up to date.

        Looking never changes the run: rows whose step a lazy algorithm has delayed are brought
        up to date in a copy.
        """
        if not self.algorithm.lags:
            return self.params
        if self.table_folder is not None:
            return _settled(self)
        params = self.params.copy()
        state = {name: part.copy() for name, part in self.state.items()}
        self.algorithm.settle_(params.without(self.local), state, None, self.round + 1)
        return params


def begin(
    model: Model,
    algorithm: Algorithm,
    plan: Plan,
    local: frozenset[str] = frozenset(),
    folder: Path | None = None,
) -> Progress:
    """Where a run stands before its first round; mapped tables are kept in a folder."""
    algorithm.check_plan(plan)
    device, dtype = plan.torch_device, plan.torch_dtype
    if plan.tables == "memory":
        params = model.start().map(lambda x: x.to(device, dtype))
        shared = params.without(local)
        state = algorithm.start(shared)
        return Progress(
            0, params, state, algorithm, local, None, _row_clip(plan, algorithm, shared)
        )
    if algorithm.sweeps:
        raise PlanError(
            f"{algorithm.name} moves every row in every round, which mapped tables are not made "
            "for: choose its lazy form, with --lazy, or --tables memory."
        )
    table_folder, (starts, dense) = TableFolder(folder), model.initial_rows()
    tables: dict[str, Tensor] = {}
    for name, table in model.schema.tables.items():
        part = table_folder.add(name, table.rows, starts[name], (table.width,), dtype)
        tables[name] = SparseTable.of(part, device)
    copies = {name: x.to(device, dtype, copy=True) for name, x in dense.items()}
    params = Params(tables, copies)
    shared = params.without(local)
    state, clip = algorithm.start(shared), _row_clip(plan, algorithm, shared)
    return Progress(0, params, state, algorithm, local, table_folder, clip)


def rounds(
    fleet: Fleet, plan: Plan, progress: Progress, run_round: RunRound | None = None
) -> Iterator[Progress]:
    """Runs the rounds that the plan has left, yielding after each of them.

    run_round: what runs the next round of `progress`, such as a faster way; the plain one if None.
    """
    run_round = run_round or PlainRounds(fleet, plan, progress)
    while progress.round < plan.rounds:
        run_round()
        yield progress


RunRound = Callable[[], None]


class Schedule(Protocol):
    """Who trains when, if not a new cohort in every round.

    In virtual time (`simulator`), or as nodes come and go (`flower`). If fewer updates have arrived
    than the fleet calls enough (`Fleet.least`), it is asked again who begins.
    """

    def begin(self, number: int) -> Tensor:
        """The clients that begin to train before a step, ascending; there may be none."""

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        """The updates that the step takes, of those that have just been trained and of earlier."""

    def stepped(self, update: Submodels) -> None:
        """Takes note of the rows that the step has moved."""


class PlainRounds:
    """Runs the next round of a run each time it is called: take, train, total, step."""

    def __init__(
        self, fleet: Fleet, plan: Plan, progress: Progress, schedule: Schedule | None = None
    ) -> None:
        self.fleet, self.plan, self.progress = fleet, plan, progress
        self.schedule = schedule
        self._weights, self._weight = fleet.weights, float(fleet.weights.sum())

    def __call__(self) -> None:
        attempt = 0
        while not self._answered(attempt):
            attempt += 1  # ask others

    def _answered(self, attempt: int) -> bool:
        """Whether enough clients of a cohort have answered, and the round is done."""
        fleet, plan, progress, local = self.fleet, self.plan, self.progress, self.progress.local
        algorithm, params, state = progress.algorithm, progress.params, progress.state
        shared = params.without(local)  # what the server has a say in
        number = progress.round + 1
        fleet.gather()
        _check_clients(plan, fleet)
        if fleet.weights is not self._weights:  # O(N), so not in every round
            self._weights, self._weight = fleet.weights, float(fleet.weights.sum())
        if self.schedule is None:
            cohort = fleet.draw(number + attempt * ATTEMPT, plan.clients_per_round)
        else:
            cohort = self.schedule.begin(number)
        facts = Round(number, plan.lr_at(number), fleet.clients, self._weight, cohort)
        heat, upload = fleet.heat(), self._trained(facts) if len(cohort) else None
        if self.schedule is not None:
            upload = self.schedule.arrived(number, upload)
            facts = replace(facts, cohort=upload.clients)
        assert upload is not None, "a fleet draws at least one client"
        if len(upload.clients) < fleet.least:
            return False
        for table in local & upload.update.rows.keys():
            # One client holds a row, and keeps it: nothing is averaged.
            ids = upload.update.index[table].ids
            index_add_(params.tables[table], ids, upload.update.rows[table])
        if len(upload.clients):  # or nobody answered, and the model stays where it is
            own = self._weights[upload.clients] if upload.weights is None else upload.weights
            own, update = own.to(upload.steps), upload.update.without(local)
            if self.schedule is not None:  # of older cohorts, whose rows may have been left behind
                algorithm.settle_(shared, state, update.index, number)
            extra, clip = upload.extra, progress.row_clip
            if clip is not None:
                share = own / own.sum()
                factors = algorithm.correction(update.index, heat, plan.torch_dtype, share)
                update = clip.clip(update, share, factors)
                extra = {x: clip.clip(y, share, None, f"{x}/") for x, y in extra.items()}
            sums = total(update, own, upload.steps, upload.occurred)
            for name, part in extra.items():
                sums.extra[name] = total(part, own, upload.steps)
            algorithm.step_(shared, state, sums, heat, facts)
            if self.schedule is not None:
                self.schedule.stepped(update)
        progress.round = number
        return True

    def _trained(self, facts: Round) -> Upload:
        """What the clients of a round make of the model as it is now."""
        progress, local, clients = self.progress, self.progress.local, len(facts.cohort)
        algorithm, params, state = progress.algorithm, progress.params, progress.state
        opened = self.fleet.open_round(facts)
        asked = {table: index for table, index in opened.index.items() if table not in local}
        algorithm.settle_(params.without(local), state, asked, facts.number)
        start = take(params, opened.index, clients)
        upload = opened.train(start, algorithm.send(state, asked, clients))
        progress.bytes_down = opened.traffic.down / clients
        progress.bytes_up = opened.traffic.up / clients
        return upload


@dataclass
class _Settled:
    """The rows of a table of a lazy algorithm, brought up to date as they are read."""

    progress: Progress
    table: str

    def read(self, ids: Tensor) -> Tensor:
        """Some rows as they would be if no step had been delayed."""
        progress, table = self.progress, self.table
        params = Params({table: progress.params.tables[table][ids]}, {})
        state = {
            name: Params(
                {t: x[ids] for t, x in part.tables.items() if t == table},
                {d: x.clone() for d, x in part.dense.items()},
            )
            for name, part in progress.state.items()
        }
        progress.algorithm.settle_(params, state, None, progress.round + 1)
        return params.tables[table].cpu()

    def touched(self) -> Tensor:
        """The ids of the rows that exist, sorted."""
        table = self.progress.params.tables[self.table]
        assert isinstance(table, SparseTable)
        return table.rows.touched()


def _settled(progress: Progress) -> Params:
    """The model of a lazy algorithm in a table folder, to be read by ids."""
    tables = dict(progress.params.tables)
    for name in tables.keys() - progress.local:
        like = tables[name]
        tables[name] = SparseTable(
            _Settled(progress, name), tuple(like.shape), like.dtype, like.device
        )
    return Params(tables, progress.params.dense)


def _row_clip(plan: Plan, algorithm: Algorithm, shared: Params) -> RowClip | None:
    if plan.row_clip is None:
        return None
    tensors = [*shared.tables, *shared.dense]
    names = [
        part + name for part in ("", *(f"{x}/" for x in algorithm.returns)) for name in tensors
    ]
    return RowClip(plan.row_clip, names)


def _check_clients(plan: Plan, fleet: Fleet) -> None:
    if plan.mode == "sync" and plan.clients_per_round > fleet.clients:
        raise PlanError(
            f"clients-per-round is {plan.clients_per_round}, but only {fleet.clients} clients have "
            f"training data: ask for at most {fleet.clients}."
        )

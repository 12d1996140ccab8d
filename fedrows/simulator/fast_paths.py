"""Which fast paths a simulated run takes: decided here, and nowhere else.

The plain way is `server.rounds` over a `SimulatedFleet` that calls `client.train`. Each fast path
wraps a part of it and gives the same numbers:

    traces            a lifted module's step as a flat list of operations     lifting.traced_model
    measured_chunks   a cohort cut into as many clients as are fastest        chunks
    cuda_graphs       local training as a CUDA graph                          cuda_graphs
    select_kernel     a cohort's index sets by one CUDA kernel                nn.kernels.select
    recorded_rounds   a whole round as a CUDA graph                           recorded_rounds

Beside these a run may have several processes (`torchrun_fleet`), and sums in a fixed order
(`deterministic`), which is slower; both are asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrows.algorithm import Algorithm
from fedrows.client import PlainTrainer, Trainer
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.fleet import Fleet
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.traced_model import TracedModel
from fedrows.model import Model
from fedrows.nn import fused, kernels
from fedrows.nn.kernels.select import select
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.server import PlainRounds, Progress, RunRound, Schedule
from fedrows.simulator import process_group
from fedrows.simulator.chunks import ChunkedTrainer
from fedrows.simulator.cuda_graphs import CudaGraphTrainer
from fedrows.simulator.deterministic import DeterministicRounds
from fedrows.simulator.recorded_rounds import RecordedRounds
from fedrows.simulator.simulated_fleet import SimulatedFleet
from fedrows.simulator.torchrun_fleet import TorchrunFleet


@dataclass(frozen=True)
class FastPaths:
    """The fast paths that are taken."""

    traces: bool = False
    measured_chunks: bool = False
    cuda_graphs: bool = False
    select_kernel: bool = False
    recorded_rounds: bool = False


PLAIN = FastPaths()  # no fast path: every round takes the plain way


def fastest(model: Model, algorithm: Algorithm, data: FederatedData, plan: Plan) -> FastPaths:
    """All fast paths that a run may take on its device."""
    if plan.torch_device.type == "cpu":
        measured = plan.chunk is None and not plan.deterministic
        return FastPaths(traces=True, measured_chunks=measured)
    if plan.torch_device.type != "cuda" or model.one_by_one:
        return PLAIN  # a graph of one client after another would be as long as the cohort
    placed = all(index.place is not None for index in data.index.values())
    return FastPaths(
        cuda_graphs=True,
        select_kernel=placed and kernels.missing() is None,
        # A whole round is recorded with rows behind the cohort's own, to which nothing is added,
        # and with nothing but the model in it: no files, no state, no table that clients keep, no
        # bound that follows from earlier rounds, no rows that are drawn anew.
        recorded_rounds=placed
        and _only_adds(algorithm)
        and not algorithm.pooled
        and plan.batches == "draw"
        and plan.chunk is None
        and plan.row_clip is None
        and not plan.in_virtual_time
        and plan.tables == "memory"
        and plan.clients_per_round <= data.clients
        and not data.local
        and data.labels != "ranking",
    )


def _only_adds(algorithm: Algorithm) -> bool:
    """Whether a step only adds to the model, and nothing but the model and updates travels."""
    own = type(algorithm)
    silent = (
        own.start is Algorithm.start
        and own.settle_ is Algorithm.settle_
        and own.send is Algorithm.send
        and own.finish is Algorithm.finish
    )
    silent = silent and not algorithm.needs_occurred
    return own.additive and not own.keeps and not own.returns and silent


def fleet(
    model: Model,
    algorithm: Algorithm,
    data: FederatedData,
    plan: Plan,
    paths: FastPaths | None = None,
) -> SimulatedFleet:
    """The simulated fleet on some fast paths, on all that it may take if they are not given."""
    paths = fastest(model, algorithm, data, plan) if paths is None else paths
    notes: list[str] = []
    plain = PlainTrainer(traced(model, plan, notes) if paths.traces else model, algorithm, plan)
    trainer: Trainer = plain
    if paths.cuda_graphs:
        trainer = CudaGraphTrainer(plain, notes)
        notes += fused.notes()
    chunked = ChunkedTrainer(trainer, plan.chunk, paths.measured_chunks, notes)
    by_kernel = select if paths.select_kernel else Index.select
    return SimulatedFleet(model, algorithm, data, plan, chunked, by_kernel)


def round_runner(
    server_side: Fleet,
    fleet: SimulatedFleet,
    plan: Plan,
    progress: Progress,
    paths: FastPaths,
    schedule: Schedule | None = None,
) -> RunRound:
    """What runs the rounds of a fleet; `server_side` is what the server sees of it."""
    plain = PlainRounds(server_side, plan, progress, schedule)
    run_round: RunRound = plain
    if paths.recorded_rounds and server_side is fleet:  # or what wraps it wants to see every round
        run_round = RecordedRounds(plain, fleet)
    return DeterministicRounds(run_round, fleet.notes) if plan.deterministic else run_round


def several_processes(fleet: SimulatedFleet, private: bool) -> TorchrunFleet | None:
    """The fleet split over the processes that torchrun has started; None if there is only one."""
    if not process_group.several():
        return None
    if private:
        raise PlanError("A private run has one process: start it without torchrun.")
    if fleet.plan.tables == "mapped":
        raise PlanError(
            "Mapped tables have one process: start it without torchrun, or with --tables memory."
        )
    return TorchrunFleet(fleet, process_group.join())


def traced(model: Model, plan: Plan, notes: list[str]) -> Model:
    """The model to train with: one that replays its steps, if they can be traced."""
    if plan.torch_device.type != "cpu" or not isinstance(model, Lifted) or model.one_by_one:
        return model
    return TracedModel(model, notes)

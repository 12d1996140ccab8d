"""Personal parts: every client trains its own, and nobody else sees them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from private_runs import OPEN
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrows import FederatedData, Plan, Simulation, catalogue, simulate, with_personal
from fedrows.data.batches import batches, local_data
from fedrows.data.personal import PERSONAL, in_one_row, without_personal
from fedrows.errors import DataError, ModelError, PlanError
from fedrows.lifting.adapt import adapt, with_rows
from fedrows.lifting.lifted import Lifted
from fedrows.measure.new_clients import new_clients
from fedrows.nn import Dice
from fedrows.privacy.options import Privacy
from fedrows.rows.params import Params
from fedrows.runs.export import Trained
from fedrows.seeds import COHORT, choose

PLAN = Plan(
    rounds=5, clients_per_round=3, local_steps=4, batch_size=2, lr=0.4, weighting="uniform",
    device="cpu", dtype="float64", evaluate_every=5,
)  # fmt: skip
CLIENTS = 6


class Net(nn.Module):
    """Items that all share, and a head and an offset of each client's own."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.mix = nn.Embedding(8, 3), nn.Linear(3, 3)
        self.head, self.offset = nn.Linear(3, 1), nn.Parameter(torch.tensor(0.25))
        for number, x in enumerate(self.parameters()):
            at = torch.arange(x.numel(), dtype=torch.float64)
            x.data = torch.sin(at + number).view(x.shape)

    def forward(self, item: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.item(item))))[:, 0] + self.offset


OWN = ["head", "offset"]


def federation(last_trains: bool = True) -> FederatedData:
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(CLIENTS), 5)
    test = np.arange(len(client)) % 5 == 4
    return FederatedData.build(
        client=client,
        ids={"item": rng.integers(0, 8, len(client))},
        label=rng.integers(0, 2, len(client)),
        test=test if last_trains else test | (client == CLIENTS - 1),
        tables={"item": 8},
    )


def lifted(data: FederatedData, **more: object) -> Lifted:
    return Lifted(Net(), data, personal=OWN, **more)


def twin(data: FederatedData, plan: Plan) -> list[dict[str, Tensor]]:
    """Every client's module after FedAvg in which each keeps its own head and offset."""
    net = Net()
    shared = {name: x.detach().clone() for name, x in net.named_parameters()}
    own = [{n: shared[n] for n in shared if n.split(".")[0] in OWN} for _ in range(data.clients)]
    for number in range(1, plan.rounds + 1):
        cohort = choose(plan.seed, COHORT, number, data.clients, plan.clients_per_round)
        ends = []
        for client in cohort.tolist():
            here = {n: x.clone().requires_grad_() for n, x in {**shared, **own[client]}.items()}
            alone = torch.tensor([client])
            index = {"item": data.index["item"].select(alone)}
            for batch in batches(_without_personal(local_data(data, alone)), index, plan, number):
                ids = index["item"].ids[batch.ids["item"][0]]
                loss = binary_cross_entropy_with_logits(
                    functional_call(net, here, (ids,)), batch.label[0].double()
                )
                slopes = torch.autograd.grad(loss, list(here.values()))
                moved = zip(here.items(), slopes, strict=True)
                here = {n: (x - plan.lr * g).detach().requires_grad_() for (n, x), g in moved}
            ends.append({n: x.detach() for n, x in here.items()})
            own[client] = {n: ends[-1][n] for n in own[client]}
        shared = {n: torch.stack([x[n] for x in ends]).mean(0) for n in shared}
    return [{**shared, **mine} for mine in own]


def _without_personal(local):
    return replace(local, slots={n: x for n, x in local.slots.items() if n != PERSONAL})


@pytest.mark.parametrize("one_by_one", [False, True])
def test_each_client_trains_its_own_copy(one_by_one):
    data = with_personal(federation())
    model = lifted(data, one_by_one=one_by_one)
    run = Simulation(data, model, catalogue.algorithm("fedavg")(), PLAN)
    for _ in run:
        pass
    params, wanted = run.progress.whole(), twin(data, PLAN)
    for client in range(CLIENTS):
        found = model.of_client(params, client)
        for name, x in wanted[client].items():
            if not name.startswith("item"):
                torch.testing.assert_close(found[name], x, rtol=0, atol=1e-12)
    # The score of a test example is that of its own client's module.
    test = run.evaluator.test
    scores = model.scores(params, test.fields(torch.arange(len(test))))
    for at, client in enumerate(test.owner.tolist()):
        alone = functional_call(Net(), model.of_client(params, client), (test.ids["item"][[at]],))
        torch.testing.assert_close(scores[at], alone[0], rtol=0, atol=1e-12)


def test_they_start_from_the_module_and_are_not_sent():
    data = with_personal(federation())
    model = lifted(data)
    start = model.start().tables[PERSONAL]
    net = Net()
    row = torch.cat([net.offset.view(1), net.head.weight.view(-1), net.head.bias]).detach()
    assert {tuple(sorted(x.tolist())) for x in start} == {tuple(sorted(row.tolist()))}
    runs = {}
    for own in (OWN, []):
        result = simulate(federation(), Net(), "fedavg", personal=own, **_options())
        runs[bool(own)] = result.history[-1]
        if own:  # what leaves has them as they started
            assert torch.equal(result.state_dict()["head.weight"], net.head.weight)
            trained = Trained.of(result, with_personal(federation()))
            assert list(trained.inputs()) == ["item"]
            assert trained.module()(torch.tensor([3])).shape == (1,)
    for way in ("bytes_down", "bytes_up"):
        assert runs[False][way] - runs[True][way] == 8 * len(row)


def _options() -> dict[str, object]:
    names = ("rounds", "clients_per_round", "local_steps", "batch_size", "lr", "device", "dtype")
    return {name: getattr(PLAN, name) for name in names}


def test_chunks_mapped_tables_and_private_rounds_keep_them(tmp_path: Path):
    data, found = with_personal(federation()), {}
    ways: dict[str, dict[str, object]] = {"plain": {}, "chunks": {"chunk": 2}}
    ways["mapped"] = {"tables": "mapped"}
    for name, more in ways.items():
        plan = replace(PLAN, **more)
        run = Simulation(
            data, lifted(data), catalogue.algorithm("fedavg")(), plan, folder=tmp_path / name
        )
        for _ in run:
            pass
        found[name] = run.progress.whole().tables[PERSONAL][torch.arange(CLIENTS)]
    privacy = Privacy.of("index", secure_sum="arithmetic", **OPEN)
    run = Simulation(data, lifted(data), catalogue.algorithm("fedavg")(), PLAN, privacy)
    for _ in run:
        pass
    found["private"] = run.progress.whole().tables[PERSONAL]
    for name in ("chunks", "mapped"):
        torch.testing.assert_close(found[name], found["plain"], rtol=0, atol=1e-12)
    torch.testing.assert_close(found["private"], found["plain"], rtol=0, atol=1e-4)
    assert len(torch.unique(found["plain"], dim=0)) > 3


def test_a_new_client_adapts():
    """Its loss falls, its own rows alone move, and they are those of plain gradient descent."""
    data = with_personal(federation(last_trains=False))
    assert data.clients == CLIENTS - 1
    model = lifted(data)
    params = model.start().map(lambda x: x.double())
    examples = data.test.of(torch.tensor([CLIENTS - 1])).to(torch.device("cpu"), torch.float64)
    own = adapt(model, params, examples, data.fields, data.local, steps=7, lr=0.3)
    adapted = with_rows(params, own)
    net = Net()
    parts = [net.offset, net.head.weight, net.head.bias]
    for _ in range(7):
        loss = binary_cross_entropy_with_logits(net(examples.ids["item"]), examples.label)
        for x, slope in zip(parts, torch.autograd.grad(loss, parts), strict=True):
            x.data -= 0.3 * slope
    found = model.of_client(adapted, CLIENTS - 1)
    torch.testing.assert_close(found["head.weight"], net.head.weight.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["offset"], net.offset.detach(), rtol=0, atol=1e-12)
    assert torch.equal(adapted.tables["item"], params.tables["item"])
    assert torch.equal(adapted.tables[PERSONAL][:-1], params.tables[PERSONAL][:-1])
    assert torch.equal(params.tables[PERSONAL], model.start().tables[PERSONAL])
    with pytest.raises(DataError, match="without examples cannot adapt"):
        adapt(model, params, examples.pick(torch.tensor([], dtype=torch.int64)), data.fields, ())


def taught(labels: str = "binary") -> FederatedData:
    """Clients that like all or nothing; the last ten of thirty have test examples alone."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(30), 8)
    return FederatedData.build(
        client=client,
        ids={"item": rng.integers(0, 8, len(client))},
        label=(client % 2 == 0) ^ (rng.random(len(client)) < 0.1),
        test=(client >= 20) | (np.arange(len(client)) % 8 == 7),
        tables={"item": 8},
        labels=labels,
    )


def test_new_clients_fit_their_personal_parts_before_they_are_measured():
    data = taught()
    result = simulate(data, Net(), "fedavg", personal=OWN, **_options())
    found = new_clients(result.model, result.params, data, share=0.5, steps=30, lr=0.5)
    assert (found["clients"], found["examples"]) == (10, 40)
    assert found["start"]["auc"] < 0.65
    assert found["fitted"]["auc"] > 0.8
    assert found["fitted"]["loss"] < found["start"]["loss"]
    # One client by hand: its first four examples, and the score of its fifth.
    owner = with_personal(data)
    params, model = result.params, result.model
    own = owner.test.of(torch.tensor([20])).to(torch.device("cpu"), torch.float64)
    known, asked = own.pick(torch.arange(4)), own.pick(torch.arange(4, 8))
    rows = adapt(model, params, known, owner.fields, owner.local, steps=30, lr=0.5)
    fitted = with_rows(params, rows)
    own_state = model.of_client(fitted, 20)
    by_hand = functional_call(Net(), own_state, (asked.ids["item"],))
    scores = model.scores(fitted, asked.fields(torch.arange(4)))
    torch.testing.assert_close(scores, by_hand, rtol=0, atol=1e-12)
    alone = replace(owner, test=replace(owner.test, splits=owner.test.splits[:22]))
    one = new_clients(model, params, alone, share=0.5, steps=30, lr=0.5)
    loss = binary_cross_entropy_with_logits(by_hand, asked.label)
    assert one["clients"] == 1
    assert one["fitted"]["loss"] == pytest.approx(float(loss), abs=1e-9)


def test_new_clients_that_cannot_be_measured_are_named():
    data = taught()
    result = simulate(data, Net(), "fedavg", personal=OWN, **_options())
    with pytest.raises(PlanError, match="share is 1"):
        new_clients(result.model, result.params, data, share=1)
    with pytest.raises(DataError, match="no new client with two examples"):
        new_clients(result.model, result.params, federation())
    shared = simulate(data, Net(), "fedavg", **_options())
    with pytest.raises(DataError, match="nothing to fit"):
        new_clients(shared.model, shared.params, data)


def test_the_table_can_be_taken_away_again():
    raw = federation()
    data = without_personal(with_personal(raw))
    assert without_personal(raw) is raw
    assert (data.tables, data.fields, data.local) == (raw.tables, raw.fields, raw.local)
    for part in ("train", "validation", "test"):
        assert getattr(data, part).ids.keys() == {"item"}
    assert data.index.keys() == raw.index.keys()
    assert data.slots.keys() == raw.slots.keys()


def test_what_cannot_be_personal():
    raw = federation()
    data = with_personal(raw)
    with pytest.raises(ModelError, match=r"call fedrows.with_personal\(data\) first"):
        lifted(raw)
    with pytest.raises(ModelError, match=r"names 'heat', but the module's parameters are offset"):
        Lifted(Net(), data, personal=["heat"])
    with pytest.raises(ModelError, match=r"`personal` is 'head', but must be a list of names"):
        Lifted(Net(), data, personal="head")
    with pytest.raises(ModelError, match=r"has table 'item' in it: build the data with local"):
        Lifted(Net(), data, personal=["item"])
    frozen = Net()
    frozen.offset.requires_grad_(False)
    with pytest.raises(ModelError, match="'offset' is frozen"):
        Lifted(frozen, data, personal=["offset"])
    measuring = Net()
    measuring.norm = Dice(3)
    with pytest.raises(ModelError, match="measures moments over all clients"):
        Lifted(measuring, data, personal=["head"])
    with pytest.raises(PlanError, match="centralsgd trains on pooled data"):
        Simulation(data, lifted(data), catalogue.algorithm("centralsgd")(), PLAN)
    assert with_personal(data) is data
    named = FederatedData.build(
        client=np.arange(2), ids={"personal": np.arange(2)}, label=np.arange(2),
        test=np.zeros(2, dtype=bool), tables={"personal": 2},
    )  # fmt: skip
    with pytest.raises(DataError, match="a table or a field 'personal' already"):
        with_personal(named)


def test_a_node_keeps_them(tmp_path: Path):
    """A deployment learns what a simulation does; no message has a personal part in it."""
    pytest.importorskip("safetensors")
    from deployed import CONFIG, run, shards_of, simulated, task_of
    from loopback import federation as deployed_federation

    from fedrows.flower.wire.message import unpack

    data = with_personal(federation())
    task = task_of(in_one_row(data), lambda own, seed: lifted(own))
    config = CONFIG | {"clients-per-round": 4, "rounds": 6, "optimizer": "adam", "lr": 0.05}
    fleet, loopback = deployed_federation(task, config, shards_of(data), tmp_path)
    found, wanted = run(fleet, in_one_row(data)), simulated(fleet, data)
    assert not fleet.rejected
    item = found.params.tables["item"]
    torch.testing.assert_close(item, wanted.tables["item"], atol=1e-12, rtol=0)
    torch.testing.assert_close(found.params.dense, wanted.dense, atol=1e-12, rtol=0)
    start: Params = lifted(data).start()
    assert torch.equal(found.params.tables[PERSONAL], start.tables[PERSONAL][:1])
    assert not torch.equal(wanted.tables[PERSONAL], start.tables[PERSONAL])
    for _, message in loopback.sent:
        assert not any(PERSONAL in part for part in unpack(message).parts)

"""Devices that are threads, in private runs: Python's own halves, over the gateway's HTTP.

They stand in for tabs, and train with PyTorch. tests/test_private_tabs.py has real tabs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deployed import shards_of, task_of
from gateway_devices import (
    GENEROUS,
    GatewayRefused,
    GatewayUnreachable,
    SignedHttp,
    gateway_node,
    serving,
)
from gateway_programs import write_program
from loopback import Loopback, federation

from fedrows.algorithm import Round
from fedrows.client import Assignment, train
from fedrows.data.batches import local_data
from fedrows.data.federation import FederatedData
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import GatewayLimits, application
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.names import round_of
from fedrows.flower.wire.submodels import SubmodelLayout, decode_submodels
from fedrows.privacy import openings, secure_sum
from fedrows.privacy.families import RowFamilies
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.layout import PartyVectors
from fedrows.privacy.openings import Openings
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.ring import Coding
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.union import Direct
from fedrows.privacy.values import Values
from fedrows.privacy.weighted_mean import ClientUpdates, WeightedMean
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

ONE, YES = np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool)


@dataclass
class PrivateDevice:
    """One device: a client of some data, and its halves of the sums that are under way."""

    url: str
    token: str
    name: str
    contract: Any
    data: FederatedData
    client: int
    key: NodeKey = field(default_factory=NodeKey)
    halves: dict[str, Any] = field(default_factory=dict)
    held: HeldBack | None = None
    seen: list[Message] = field(default_factory=list)  # all work that came
    sent: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = SignedHttp(self.url)
        secret = secrets.token_hex(32)
        body = json.dumps({"token": self.token, "key": secret, "name": self.name}).encode()
        answer = self.http.ask("POST", "/v1/enrol", body, signed=False).json()
        self.http.device, self.http.key = answer["device"], bytes.fromhex(secret)
        self.model = self.contract.model(self.data)
        self.registration = pack(Message("registration", {"examples": 1}, {"key": self.key.public}))

    def step(self, wait: int = 1) -> None:
        """Checks in once, and does what there is to do."""
        state = self.http.ask("POST", f"/v1/check-in?wait={wait}").json()
        if state["program"] is None:
            return
        if state["registration"] is None:
            assert self.http.ask("GET", "/v1/program").json()["private"]
            body = self.registration
            self.http.ask("PUT", f"/v1/registration?program={state['program']}", body)
        elif state["work"]:
            id_ = state["work"]["id"]
            with contextlib.suppress(GatewayRefused):  # the round went on without it
                message = unpack(self.http.ask("GET", f"/v1/work/{id_}", most=2**30).body)
                self.seen.append(message)
                answer = self.answer(message)
                self.sent.append(answer)
                self.upload(id_, answer)

    def upload(self, id_: str, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        target = f"/v1/work/{id_}?offset=0&total={len(body)}&sha256={digest}"
        self.http.ask("PUT", target, body)

    def answer(self, message: Message) -> bytes:
        """The answer to one phase; silence if the half refuses."""
        facts, name = message.facts, message.facts["sum"]
        try:
            if facts["phase"] == 0:
                self.halves[name] = self.half(message)
                reply = next(self.halves[name])
            else:
                reply = self.halves[name].send(message.parts["request"])
        except (ProtocolError, StopIteration, KeyError):
            return pack(Message("silent", {}, {}))
        return pack(Message("sum", {"sum": name, "phase": facts["phase"]}, {"reply": reply}))

    def half(self, message: Message) -> Any:
        """This device's half of a sum."""
        body, own = message.parts["terms"], message.facts
        agreed = unpack(body)
        about, me = agreed.facts, own["party"]
        keys = {i: bytes.fromhex(key) for i, key in enumerate(about["parties"])}
        name = f"{about['sum']}, {hashlib.sha256(body).hexdigest()}"
        given = {"colluding": about["colluding"], "early_list": True}
        cohort, tables = tuple(keys), {t["name"]: t for t in about["tables"]}
        held = {t: self.data.index[t].slice(self.client, self.client + 1).ids for t in tables}
        if about["use"] != "update":
            plan = Direct(sum(t["rows"] for t in tables.values()))
            starts = np.cumsum([0, *(t["rows"] for t in tables.values())])
            places = np.concatenate(
                [start + held[t].numpy() for t, start in zip(tables, starts, strict=False)]
            )
            words = plan.entries(places, me)
            if about["use"] == "heat":
                words = (words != 0).astype(np.uint32)
            terms = SumTerms(name, cohort, about["threshold"], plan.length, **given)
            return secure_sum.client(terms, me, self.key, keys, words)
        return self._update(agreed, own, name, keys, given)

    def _update(self, agreed: Message, own: Any, name: str, keys: Any, given: Any) -> Any:
        about, me, cohort = agreed.facts, own["party"], tuple(keys)
        widths = {t["name"]: t["width"] for t in about["tables"]}
        rows = {t["name"]: t["rows"] for t in about["tables"]}
        union = {
            t: ids_from_bytes(agreed.parts[f"union/{t}"], n, n).numpy() for t, n in rows.items()
        }
        values = dict.fromkeys(widths, Values()) if about["minimum"] > 1 else None
        dense = {x["name"]: tuple(x["shape"]) for x in about["dense"]}
        mean = WeightedMean(widths, dense, about["range"], about["losses"], values)
        layout = mean.layout(union)
        index = {t: Index.of([torch.from_numpy(ids)]) for t, ids in union.items()}
        wire = SubmodelLayout(index, self.model.schema, "float32", torch.float32)
        updates = self.trained(decode_submodels("model", agreed.parts, wire), own, about["lr"])
        self.held = self.held or HeldBack(widths)
        sent = mean.within_range(mean.contribute(updates, union, self.held))
        nothing = {t: np.zeros(len(ids), dtype=bool) for t, ids in union.items()}
        mean.keep_(self.held, sent, ONE, layout, nothing, YES, ~YES)
        coding = Coding(**{x: about["coding"][x] for x in Coding.__dataclass_fields__})
        families = layout.families
        plan = Openings(
            name, cohort, layout.pieces, layout.piece, about["minimum"],
            0 if layout.behind else layout.extra, about["openers"], coding.dtype.name,
            families, round_of(own["tag"]),
        )  # fmt: skip
        assert families is None or isinstance(families, RowFamilies)
        terms = plan.terms(about["threshold"], **given)
        part = PartyVectors(layout, sent, coding).words(0)
        marks = yield from openings.client(plan, terms, me, self.key, keys, *part)
        mean.keep_(self.held, sent, ONE, layout, layout.marks(marks), YES, YES)

    def trained(self, sent: Submodels, own: Any, lr: float) -> ClientUpdates:
        """What this device makes of its rows."""
        number = torch.tensor([own["number"]])
        data = self.data.to(torch.device("cpu"), torch.float32)
        mine = {t: x.slice(self.client, self.client + 1) for t, x in data.index.items()}
        rows = {}
        for table, its in mine.items():
            at = torch.searchsorted(sent.index[table].ids, its.ids)
            assert torch.equal(sent.index[table].ids[at], its.ids)
            rows[table] = sent.rows[table][at]
        start = Submodels(mine, rows, sent.dense)
        about = Round(round_of(own["tag"]), lr, 1, 0.0, number)
        local = replace(local_data(data, torch.tensor([self.client])), clients=number)
        work = Assignment(local, start, None, None, about)
        update = train(self.model, self.contract.algorithm, self.contract.plan, work).update
        return ClientUpdates(update.map(torch.Tensor.double), np.ones(1), ONE, ONE, np.full(1, 0.5))


@dataclass
class PrivateRun:
    """A fleet of nodes, one of which is a gateway with private devices."""

    fleet: FlowerFleet
    loopback: Loopback
    store: GatewayStore
    url: str
    contract: Any
    shard: FederatedData
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def device(self, client: int) -> PrivateDevice:
        """A device, enrolled."""
        name = f"device-{client:05d}"
        return PrivateDevice(
            self.url, self.store.make_token(), name, self.contract, self.shard, client
        )

    def start(self, device: PrivateDevice) -> None:
        """Runs a device in a thread."""
        thread = threading.Thread(target=self._run, args=[device], daemon=True)
        self.threads.append(thread)
        thread.start()

    def _run(self, device: PrivateDevice) -> None:
        try:
            while not self.stop.is_set():
                try:
                    device.step()
                except GatewayUnreachable:
                    time.sleep(0.05)
                self.stop.wait(0.01)
        except GatewayRefused as error:
            if not self.stop.is_set():
                self.failures.append(error)
        except BaseException as error:
            self.failures.append(error)
        finally:
            device.http.close()


@contextlib.contextmanager
def private_run(
    data: FederatedData,
    config: Mapping[str, Any],
    folder: Path,
    devices: int,
    nodes: int = 3,
    model: Any = None,
    page: Path | None = None,
    limits: GatewayLimits = GENEROUS,
    **own: Any,
) -> Iterator[PrivateRun]:
    """The last clients are devices of a gateway; the others are those of ordinary nodes.

    model: one whose program is exported, instead of a program that only the devices here know.
    page: what the gateway serves to browsers.
    """
    task, others = task_of(data, model) if model else task_of(data), data.clients - devices
    shard = data.select(torch.arange(others, data.clients))
    shards = {"gate": shard, **shards_of(data.select(torch.arange(others)), nodes)}
    fleet, loopback = federation(task, config, shards, folder)
    own |= {"devices": devices, "peers": str(folder / "peers.json")}
    own |= {"policy": str(folder / "policy.toml")}
    if model is None:
        own["program"] = str(write_program(task, config, shard, folder / "program"))
    loopback.here[1] = gateway_node(task, config, shard, folder / "gate", **own)
    store = GatewayStore(folder / "gate")
    with serving(application(store, page, limits=limits)) as url:
        running = PrivateRun(fleet, loopback, store, url, make_contract(task, config), shard)
        try:
            yield running
        finally:
            running.stop.set()
            for thread in running.threads:
                thread.join(30)
        assert not running.failures, running.failures

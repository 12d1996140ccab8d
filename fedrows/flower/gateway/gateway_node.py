"""The node side of a gateway: answers the server's messages with what devices have made.

    enrol    publishes the program of the run, waits until enough devices have registered for it;
             if they take long, it says so, and the server asks again
    train    leaves work for the devices that are asked, waits for their uploads, joins them; in an
             asynchronous run, sends what has come in from any of them, as it came

The data of this node are a sample of the task, for their tables and fields alone: no client of it
takes part. What clients remember between rounds stays on the devices.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.device.program import build
from fedrows.flower.gateway.forms import CODING, RegistrationForm, UploadForm
from fedrows.flower.gateway.programs import ProgramError, Programs, read_manifest
from fedrows.flower.gateway.store import DeviceRegistration, GatewayStore
from fedrows.flower.gateway.work import LOOK, NewWork, Place, WorkStore
from fedrows.flower.node.enrolled import EnrolledClients, StateLost
from fedrows.flower.node.joining import file_in
from fedrows.flower.node.node import ClientNode, spread_rows
from fedrows.flower.node.policy import PolicyError
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.codings import ids_from_bytes, ids_to_bytes, integers_from_bytes
from fedrows.flower.wire.contract import Contract, digest
from fedrows.flower.wire.message import Message, WireError, pack
from fedrows.flower.wire.names import round_of
from fedrows.flower.wire.submodels import (
    SubmodelLayout,
    encode_marks,
    encode_submodels,
    join_submodels,
)
from fedrows.flower.wire.upload_checks import ANSWERED, ReceivedUpload
from fedrows.rows.index import Index
from fedrows.runs.export import ExportError

ENROL_SECONDS = 10.0  # that an enrolment waits for devices; then the server asks again
SHARE_OF_TIMEOUT = 0.8  # of the round's, that devices have; the rest is for the way back
HOLD = 5.0  # seconds that an asynchronous run's message waits for the next upload


class GatewayNode(ClientNode):
    """Answers messages for the devices of a gateway.

    config: `devices`, the fewest that a run begins with; `enough`, the share of the devices asked
    that ends a round early; `program`, a folder in place of the program that is made here.
    """

    def __init__(
        self,
        contract: Contract,
        data: Any,
        state: NodeState,
        name: str | None,
        policy: Any,
        config: Mapping[str, Any],
        **more: Any,
    ) -> None:
        super().__init__(contract, data, state, name, policy, **more)
        self._config, self.store = config, GatewayStore(state.folder)
        self.work, self.programs = WorkStore(self.store), Programs(self.store)
        self.program = digest(self._fingerprint)

    @property
    def _tables(self) -> list[str]:
        return [table for table in self.model.schema.tables if table not in self.data.local]

    def _enrol(self, message: Message) -> bytes:
        """Publishes the run's program, and sends the devices that have registered for it."""
        self._publish()
        plan, options = self.contract.plan, self.contract.options
        usual = max(plan.clients_per_round, options.min_clients or 0)
        fewest = int(self._config.get("devices", usual))
        until = time.monotonic() + ENROL_SECONDS
        while (count := self.store.count_registered(self.program)) < fewest:
            if time.monotonic() > until:
                return pack(Message("waiting", {"devices": count, "needed": fewest}))
            time.sleep(LOOK)
        return super()._enrol(message)

    def _publish(self) -> None:
        """Makes the program of this run, or takes the given one, and offers it to devices."""
        try:
            if self._config.get("program"):
                exported = file_in(self._config, "program", "folder")
                if read_manifest(exported)["contract"] != self.program:
                    raise ProgramError(
                        f"The program in {exported} is of another contract than the run: export it "
                        "again with the run's own settings, or leave --program out."
                    )
                self.programs.add(self.program, exported)
            elif not self.programs.path(self.program).is_dir():
                plan, algorithm = self.contract.plan, self.contract.algorithm
                made = build(self.model, self.data, plan, algorithm, self.program)
                with tempfile.TemporaryDirectory() as folder:
                    made.save(Path(folder))
                    self.programs.add(self.program, Path(folder))
        except (ProgramError, ExportError) as error:
            raise PolicyError(str(error)) from None
        self.programs.publish(self.program, self._form_of_registrations)

    @property
    def _form_of_registrations(self) -> RegistrationForm:
        """What devices register."""
        rows = {table: self.model.schema.tables[table].rows for table in self._tables}
        return RegistrationForm(rows, self.contract.options.max_examples)

    @cached_property
    def _registered(self) -> list[tuple[DeviceRegistration, dict[str, Tensor]]]:
        """What devices have registered, with their ids; what this run does not allow is left out.

        A device may have registered for an earlier run, which allowed more examples.
        """
        form = self.programs.form(self.program)
        if form is None:
            raise StateLost
        registered = []
        for entry in self.store.registered(self.program):
            with suppress(WireError):
                registered.append((entry, form.check(entry.message)[1]))
        return registered

    @cached_property
    def _current(self) -> EnrolledClients:
        """The devices that have registered, as the clients of this node."""
        sets: dict[str, list[Tensor]] = {table: [] for table in self._tables}
        for _, ids in self._registered:
            for table, held in ids.items():
                sets[table].append(held)
        names: list[int | str] = [entry.name for entry, _ in self._registered]
        index = {table: Index.of(held) for table, held in sets.items()}
        return EnrolledClients(names, [entry.examples for entry, _ in self._registered], index)

    def _remember(self, enrolled: EnrolledClients, version: int) -> None:
        """Stores which registration of each device the server will know."""
        super()._remember(enrolled, version)
        known = {entry.name: (entry.device, entry.version) for entry, _ in self._registered}
        devices = [known[str(name)] for name in enrolled.names]
        self.state.registrations.put(
            version, {"count": torch.tensor(len(devices))}, devices=devices
        )

    def _about(self) -> dict[str, Any]:
        return {"one-by-one": True}

    def reply(self, message: Message) -> bytes:
        """The answer to a message that is not the first; one that names nobody begins no round."""
        if message.kind == "train" and not message.parts.get("positions"):
            return self._train(message)
        return super().reply(message)

    def _train(self, message: Message) -> bytes:
        """Has the devices that a message names train, and sends what they have sent."""
        tag, version = message.facts["tag"], message.facts["version"]
        enrolled = self._enrolled(version)
        asked, forms, works = self._works(message, enrolled)
        run = str(message.facts["run"])
        deadline = time.time() + SHARE_OF_TIMEOUT * self.contract.options.timeout
        facts: dict[str, Any] = {"tag": tag}
        if "waiting" in message.facts:
            waiting = {(int(old), int(x)) for old, own in message.facts["waiting"] for x in own}
            self.work.put(run, tag, deadline, works, waiting)
            waiting |= {(tag, position) for position in range(len(works))}
            kind, (parts, facts["silent"]) = "arrived", self._arrived(run, waiting)
        else:
            ids = self.work.put(run, tag, deadline, works)
            enough = int(np.ceil(float(self._config.get("enough", 1.0)) * len(works)))
            uploads = self.work.wait(tag, len(works) - enough, deadline)
            kind, parts = "trained", self._answered(asked, forms, [uploads.get(x) for x in ids])
        changed_facts, changed_parts = self._changes(enrolled, version)
        return pack(Message(kind, facts | changed_facts, parts | changed_parts))

    def _arrived(self, run: str, waiting: set[Place]) -> tuple[dict[str, bytes], list[Place]]:
        """Uploads that have come in, as they came, by TAG/PLACE; and the work that brings none."""
        until = time.monotonic() + HOLD
        while waiting <= self.work.under_way(run) and time.monotonic() < until:
            time.sleep(LOOK)
        under_way, taken = self.work.under_way(run), self.work.taken(run)
        parts = {f"{x[0]}/{x[1]}": upload for x, upload in taken.items() if x in waiting}
        return parts, sorted(waiting - under_way - taken.keys())

    def _works(
        self, message: Message, enrolled: EnrolledClients
    ) -> tuple[EnrolledClients, list[UploadForm], list[NewWork]]:
        """The clients that a message names, what they may send, and the work for their devices."""
        tag, version = message.facts["tag"], message.facts["version"]
        devices = self.state.registrations.facts(version, "devices")
        if devices is None:
            raise StateLost
        count = len(enrolled.names)
        positions = ids_from_bytes(message.parts["positions"], count, count).tolist()
        asked = enrolled.select(positions)
        numbers = integers_from_bytes(message.parts["numbers"], len(positions))
        accepted = integers_from_bytes(message.parts["accepted"], len(positions))
        forms: list[UploadForm] = []
        works: list[NewWork] = []
        if not positions:
            return asked, forms, works
        download = {
            name: spread_rows(part, asked.index)
            for name, part in self._download(message, asked.index).items()
        }
        round_ = round_of(tag)
        common = {"run": str(message.facts["run"]), "program": self.program, "tag": tag}
        common |= {"round": round_, "lr": self.contract.plan.lr_at(round_)}
        for i, position in enumerate(positions):
            device, registration = devices[position]
            facts = {"registration": registration, "number": numbers[i], "accepted": accepted[i]}
            parts: dict[str, bytes] = {}
            for name, submodels in download.items():
                parts |= encode_submodels(name, submodels.slice(i, i + 1), CODING)
            forms.append(self._form(asked, i, tag))
            work = pack(Message("work", {**common, **facts}, parts))
            works.append(NewWork(device, forms[-1].text(), work))
        return asked, forms, works

    def _answered(
        self,
        asked: EnrolledClients,
        forms: Sequence[UploadForm],
        uploads: Sequence[bytes | None],
    ) -> dict[str, bytes]:
        """The uploads of those who have answered, as the parts of one answer."""
        answered = [i for i, upload in enumerate(uploads) if upload is not None]
        received = [forms[i].check(uploads[i] or b"") for i in answered]
        parts = self._joined(asked.select(answered), received)
        if len(answered) < len(asked.names):
            parts[ANSWERED] = ids_to_bytes(torch.tensor(answered, dtype=torch.int64))
        return parts

    def _form(self, asked: EnrolledClients, i: int, tag: int) -> UploadForm:
        """What a device's upload must look like."""
        plan, algorithm, schema = self.contract.plan, self.contract.algorithm, self.model.schema
        steps = plan.local_steps
        if plan.batches != "draw":  # one device's lie would have the server refuse all of them
            steps = -(-asked.examples[i] // plan.batch_size) * plan.epochs
            steps = min(steps, 2**31 // len(asked.names) - 2)
        return UploadForm(
            tag,
            {table: int(index.lengths[i]) for table, index in asked.index.items()},
            {table: schema.tables[table].width for table in asked.index},
            {name: list(shape) for name, shape in schema.dense.items()},
            list(algorithm.returns),
            algorithm.needs_occurred,
            steps,
            self.contract.options.max_norm,
        )

    def _joined(
        self, answered: EnrolledClients, received: Sequence[ReceivedUpload]
    ) -> dict[str, bytes]:
        """Single devices' uploads as the parts of one answer."""
        layout = SubmodelLayout(answered.index, self.model.schema, CODING, torch.float32)
        parts: dict[str, bytes] = {}
        for name in ("update", *self.contract.algorithm.returns):
            submodels = join_submodels([upload.submodels[name] for upload in received], layout)
            parts |= encode_submodels(name, submodels, CODING)
        steps = torch.tensor([int(upload.steps[0]) for upload in received], dtype=torch.int64)
        parts["steps"] = ids_to_bytes(steps.add(1).cumsum(0))
        if self.contract.options.report_loss:
            losses = [
                float(upload.losses[0]) if len(upload.losses) else np.nan for upload in received
            ]
            parts["losses"] = np.array(losses, dtype="<f4").tobytes()
        if self.contract.algorithm.needs_occurred:
            none = torch.zeros(0, dtype=torch.bool)
            marks = [upload.occurred or {} for upload in received]  # the form asks for them
            parts |= encode_marks(
                {table: torch.cat([none, *(x[table] for x in marks)]) for table in answered.index}
            )
        return parts

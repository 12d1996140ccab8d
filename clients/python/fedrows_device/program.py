"""A device program in use: its files, checked, and a round of local training by ONNX Runtime."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from fedrows_device.batches import Examples, batches, occurred, steps_of

FORMAT, VOCABULARY = 1, "vocabulary.json"
MOST_STEPS, MOST_IN_A_BATCH = 100_000, 10_000  # so that no program takes a device's time or memory
# How ONNX names a file that holds a tensor: a key of 8 bytes, however its length is written.
_OUTSIDE = re.compile(rb"(?:\x08|\x88\x80*\x00)location")
Tensors = dict[str, np.ndarray]


class ProgramError(ValueError):
    """A program that cannot be used, or inputs that do not fit it."""


@dataclass
class Update:
    """What a client has after a round."""

    rows: Tensors  # by shared table: where the rows ended − where they started
    dense: Tensors  # the same by name
    local_rows: Tensors  # by local table: where the rows ended; they stay on the device
    extra: dict[str, Tensors]  # what the algorithm returns beside the update, by rows/… and dense/…
    kept: Tensors | None  # what the algorithm keeps on the device for the next time
    steps: int
    loss: float  # of the first step's batch, before the step
    last_loss: float  # of the last one
    occurred: dict[str, np.ndarray] | None  # by shared table (R,) bool, if the algorithm asks


@dataclass
class Program:
    """A loaded program."""

    manifest: dict[str, Any]
    session: Any
    folder: Path | None = None

    @classmethod
    def load(cls, folder: str | Path) -> Program:
        """The program of a folder that has manifest.json and step.onnx."""
        folder = Path(folder)
        try:
            manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ProgramError(
                f"{folder / 'manifest.json'} cannot be read ({error}): fetch the program again."
            ) from error
        cls._check_format(manifest)
        try:
            step, _ = _read(folder, manifest["step"]["file"])
            starts = [facts.get("start", {}) for facts in manifest["tables"].values()]
            sums = {x["file"]: x["sha256"] for x in starts if "file" in x}
            if manifest["vocabulary"] is not None:
                sums[VOCABULARY] = manifest["vocabulary"]
            for name, digest in sums.items():
                _check_sum(name, _read(folder, name, keep=False)[1], digest)
            program = cls.of(manifest, step)
        except (KeyError, TypeError, AttributeError) as error:
            raise ProgramError(
                f"{folder / 'manifest.json'} lacks what a manifest has ({error}): do not use the "
                "program."
            ) from error
        program.folder = folder
        return program

    @classmethod
    def of(cls, manifest: dict[str, Any], step: bytes) -> Program:
        """The program of a manifest and the bytes of its step.onnx."""
        cls._check_format(manifest)
        _check_sum("step.onnx", hashlib.sha256(step).hexdigest(), manifest["step"]["sha256"])
        if _OUTSIDE.search(step):
            raise ProgramError(
                "step.onnx asks for tensors in other files of this device: do not use the program."
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a step is small: threads would wait for each other
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # keeps less memory
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(
                step, sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # whatever ONNX Runtime finds wrong with it
            raise ProgramError(f"step.onnx cannot be loaded ({_line(error)}).") from error
        return cls(manifest, session)

    @staticmethod
    def _check_format(manifest: Any) -> None:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        if found != FORMAT:
            raise ProgramError(
                f"manifest.json has format {found}, but this client reads format {FORMAT}: install "
                "the client that goes with the program."
            )

    def train(
        self,
        examples: Examples,
        rows: Mapping[str, np.ndarray],
        dense: Mapping[str, np.ndarray],
        local_rows: Mapping[str, np.ndarray] | None = None,
        *,
        round: int,
        number: int,
        lr: float,
        sent: Mapping[str, np.ndarray] | None = None,
        kept: Mapping[str, np.ndarray] | None = None,
    ) -> Update:
        """Trains for a round on the device's own examples.

        rows: those of `examples.index` of every shared table, and local_rows of every local one.
        number: of the client in the federation. sent: what the algorithm sends beside the model;
        kept: what it kept here; None: nothing yet. Both by rows/<table> and dense/<name>.
        """
        facts = self.manifest["tables"]
        local = [table for table in facts if facts[table]["local"]]
        start = {f"rows/{t}": x for t, x in {**rows, **(local_rows or {})}.items()}
        start |= {f"dense/{name}": x for name, x in dense.items()}
        start = {name: np.asarray(x, dtype=np.float32) for name, x in start.items()}
        self._check(examples, start)
        shared = {n: x for n, x in start.items() if n.removeprefix("rows/") not in local}
        algorithm = self.manifest["algorithm"]
        if self.manifest["keeps"] and kept is None:
            kept = {name: np.zeros_like(x) for name, x in shared.items()}
        if algorithm["sends"] and sent is None:
            raise ProgramError(f"{algorithm['name']} sends more than the model: give `sent`.")
        end, losses, drawn = self._steps(
            examples, start, round, number, lr, {"start": shared, "sent": sent, "kept": kept}
        )
        update = {name: end[name] - x for name, x in shared.items()}
        steps = len(losses)
        known = {"update": update, "sent": sent, "kept": kept}
        return Update(
            {n.removeprefix("rows/"): x for n, x in update.items() if n.startswith("rows/")},
            {n.removeprefix("dense/"): x for n, x in update.items() if n.startswith("dense/")},
            {table: end[f"rows/{table}"] for table in local},
            {name: _sum(terms, known, steps, lr) for name, terms in algorithm["extra"].items()},
            _sum(algorithm["kept"], known, steps, lr) if self.manifest["keeps"] else None,
            steps,
            losses[0],
            losses[-1],
            occurred(self.manifest, examples, drawn) if self.manifest["occurred"] else None,
        )

    def _steps(
        self,
        examples: Examples,
        start: Tensors,
        round_: int,
        number: int,
        lr: float,
        given: Mapping[str, Mapping[str, np.ndarray] | None],
    ) -> tuple[Tensors, list[float], list[Tensors]]:
        """Where the steps end, the losses before each, and the batches if somebody asks."""
        inputs = self.manifest["step"]["inputs"]
        fixed = {f"{use}/{n}": x for use, own in given.items() if own for n, x in own.items()}
        fixed = {name: np.asarray(x, np.float32) for name, x in fixed.items() if name in inputs}
        fixed["lr"] = np.array(lr, dtype=np.float32)
        here = dict(start)
        for part in self.manifest["optimizer"]["state"]:
            here |= {f"state/{part}/{name}": np.zeros_like(x) for name, x in start.items()}
        names = [*(f"next/{name}" for name in here), "loss"]
        losses: list[float] = []
        drawn: list[Tensors] = []
        for batch in batches(self.manifest, examples, round_, number):
            if self.manifest["occurred"]:
                drawn.append(batch)
            if "count" in inputs:
                batch["count"] = np.array(len(losses) + 1, dtype=np.float32)
            try:
                results = self.session.run(names, {**here, **fixed, **batch})
            except Exception as error:  # whatever ONNX Runtime finds wrong with it
                raise ProgramError(f"step.onnx cannot be run ({_line(error)}).") from error
            here = dict(zip(here, results[:-1], strict=True))
            losses.append(float(results[-1]))
        return here, losses, drawn

    def local_start(self, table: str, ids: np.ndarray) -> np.ndarray:
        """The rows of a local table that a device begins with: (n, width)."""
        facts = self.manifest["tables"][table]
        start = facts["start"]
        if "row" in start:
            return np.tile(np.array(start["row"], dtype=np.float32), (len(ids), 1))
        if self.folder is None:
            raise ProgramError(f"The rows of {table} begin in a file: load the program's folder.")
        path = _file_in(self.folder, start["file"])
        try:
            rows = np.memmap(path, "<f4", "r", shape=(facts["rows"], facts["width"]))
        except (OSError, ValueError) as error:
            raise ProgramError(f"{path} is damaged ({error}): fetch the program again.") from error
        return np.array(rows[np.asarray(ids)], dtype=np.float32)

    def _check(self, examples: Examples, start: Tensors) -> None:
        if not len(examples):
            raise ProgramError("A device without examples cannot train: it has nothing to learn.")
        wanted: dict[str, tuple[int, ...]] = {
            f"rows/{table}": (len(examples.index[table]), facts["width"])
            for table, facts in self.manifest["tables"].items()
        }
        wanted |= {f"dense/{name}": tuple(s) for name, s in self.manifest["dense"].items()}
        steps, size = self.steps(examples), self.manifest["plan"]["batch_size"]
        if not (0 < steps <= MOST_STEPS and 0 < size <= MOST_IN_A_BATCH):
            raise ProgramError(
                f"The program takes {steps} steps of {size} examples in a round, but a device "
                f"takes at most {MOST_STEPS:,} of {MOST_IN_A_BATCH:,}."
            )
        if missing := [name for name in wanted if name not in start]:
            raise ProgramError(f"The program needs {missing[0]}, which was not given.")
        for name, x in start.items():
            if name not in wanted:
                raise ProgramError(f"The program has no {name}.")
            if x.shape != wanted[name]:
                raise ProgramError(f"{name} has shape {x.shape}, but {wanted[name]} is needed.")

    def steps(self, examples: Examples) -> int:
        """How many steps a round takes."""
        return steps_of(self.manifest["plan"], len(examples))


def _read(folder: Path, name: Any, keep: bool = True) -> tuple[bytes, str]:
    """What is in a file of a program if it is to be kept, and its SHA-256."""
    try:
        with _file_in(folder, name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            return file.read() if keep else b"", found
    except OSError as error:
        raise ProgramError(
            f"{error.filename} cannot be read ({error.strerror}): fetch the program again."
        ) from error


def _check_sum(name: str, found: str, wanted: Any) -> None:
    """Raises a ProgramError unless the SHA-256 of a file is that of the manifest."""
    if found != wanted:
        raise ProgramError(
            f"{name} is damaged: its SHA-256 is not the one in manifest.json, so fetch the program "
            "again."
        )


def _line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _file_in(folder: Path, name: Any) -> Path:
    """A file of a program, which lies in its folder; the name is the gateway's."""
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise ProgramError(
            f"manifest.json names {name!r}, which is no file of a program: do not use the program."
        )
    return folder / name


def _sum(terms: Mapping[str, Any], known: Mapping[str, Any], steps: int, lr: float) -> Tensors:
    """Σ factor · tensor, as the manifest writes it; a factor is a number or −1/(steps·lr)."""
    factors = {n: -1 / (steps * lr) if f == "-1/(steps*lr)" else f for n, f in terms.items()}
    found: Tensors = {}
    for part, factor in factors.items():
        for name, x in known[part].items():
            term = np.asarray(x, np.float32) * np.float32(factor)
            found[name] = found[name] + term if name in found else term
    return found

"""The browser's counters and batches are Python's, bit for bit, run by node."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrows.data.batches import LocalData, batches, steps_of
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.ragged import Ragged, lists_of
from fedrows.seeds import BATCH, SHUFFLE, STEP, below, bits, client_keys, key

BROWSER = Path(__file__).parent.parent / "clients" / "browser"


def ask(script: str, cases: dict[str, Any]) -> Any:
    """What a script of the browser's client answers when node runs it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node: install nodejs")
    command = [node, str(BROWSER / "test" / script)]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def draw_cases(draw: random.Random) -> list[dict[str, int]]:
    """Seeds, rounds, clients and counters, the largest and smallest among them."""
    return [
        {
            "seed": draw.choice([0, 1, 7, -3, 2**31 - 1, 2**53 - 1]),
            "use": draw.choice([BATCH, SHUFFLE, STEP]),
            "round": draw.choice([0, 1, draw.randrange(2**31)]),
            "client": draw.choice([0, draw.randrange(10**6), 2**40]),
            "step": draw.choice([0, draw.randrange(1000)]),
            "position": draw.randrange(5000),
            "limit": draw.choice([1, 2, 5, draw.randrange(1, 10**7), 2**31 - 1]),
        }
        for _ in range(200)
    ]


def examples_of(draw: np.random.Generator, size: int, client: int) -> LocalData:
    """Examples of a client: ids, rows of ids, and lists of ids, some of them empty."""
    ids = torch.from_numpy(draw.integers(0, 50, size))
    wide = torch.from_numpy(draw.integers(-1, 50, (size, 3)))
    sizes = draw.integers(0, 6, size)
    lists = lists_of(draw.integers(0, 50, int(sizes.sum())), sizes)
    return LocalData(
        torch.tensor([client]),
        torch.tensor([0]),
        torch.tensor([size]),
        {"item": ids, "shown": wide, "met": lists},
        torch.from_numpy(draw.integers(0, 2, size)),
        {"item": "item", "shown": "padded", "met": "padded"},
        frozenset({"padded"}),
    )


def column(values: torch.Tensor | Ragged) -> dict[str, Any]:
    """A column as the browser keeps it."""
    if isinstance(values, Ragged):
        offsets = values.offsets.tolist()
        return {"values": values.values.tolist(), "offsets": offsets, "length": values.length}
    width = 1 if values.dim() == 1 else values.shape[1]
    return {"values": values.flatten().tolist(), "width": width, "wide": values.dim() > 1}


def test_counters_are_those_of_python() -> None:
    cases = draw_cases(random.Random(5))
    answers = ask("numbers.js", {"draws": cases, "rounds": []})["draws"]
    for case, answer in zip(cases, answers, strict=True):
        stream = key(case["seed"], case["use"], case["round"])
        assert int(answer["key"]) == stream
        own = client_keys(case["seed"], case["use"], case["round"], torch.tensor([case["client"]]))
        word = bits(own, torch.tensor([(case["step"] << 32) + case["position"]]))
        assert int(answer["random"]) == int(word) % 2**64
        assert answer["below"] == int(below(word, case["limit"]))


def test_batches_are_those_of_python() -> None:
    draw, cases, wanted = np.random.default_rng(3), [], []
    for i in range(40):
        size, client, number = int(draw.integers(1, 30)), int(draw.integers(0, 10**6)), i * i
        plan = Plan(
            seed=i,
            local_steps=int(draw.integers(1, 6)),
            batch_size=int(draw.integers(1, 9)),
            batches=("draw", "epoch")[i % 2],
            epochs=1 + i % 3,
        )
        local = examples_of(draw, size, client)
        index = {
            name: Index(torch.arange(50), torch.tensor([0, 50])) for name in ("item", "padded")
        }
        wanted.append((list(batches(local, index, plan, number, random=True)), local, plan))
        names = ("seed", "local_steps", "batch_size", "batches", "epochs")
        columns = {name: column(values) for name, values in local.slots.items()}
        columns["label"] = column(local.label)
        chosen = {name: getattr(plan, name) for name in names}
        cases.append(
            {"size": size, "plan": chosen, "number": number, "client": client, "columns": columns}
        )
    answers = ask("numbers.js", {"draws": [], "rounds": cases})["rounds"]
    for (stream, local, plan), answer in zip(wanted, answers, strict=True):
        assert answer["counted"] == len(stream) == int(steps_of(local, plan))
        assert len(answer["steps"]) == len(stream)
        for batch, step in zip(stream, answer["steps"], strict=True):
            assert batch.key is not None
            assert int(step["key"]) == int(batch.key)
            weight = None if batch.weight is None else batch.weight[0].tolist()
            assert step["real"] == weight
            for name, tensor in {**batch.ids, "label": batch.label}.items():
                read = step["read"][name]
                assert read["shape"] == list(tensor.shape[1:])
                assert read["values"] == tensor[0].flatten().tolist()

"""Attacks of a server that follows every protocol and thinks about what it has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrows.data.federation import FederatedData

GENDERS, AGES, MOVIES = 2, 7, 120
EDGES = np.cumsum([0, GENDERS, AGES, MOVIES, GENDERS * MOVIES, AGES * MOVIES]).tolist()
NAMES = ("gender", "age", "movie", "gender×movie", "age×movie")
GROUPS = {name: (EDGES[i], EDGES[i + 1]) for i, name in enumerate(NAMES)}


def ratings(clients: int, most: int = 60, seed: int = 0) -> FederatedData:
    """Ratings with the features of MovieLens: client i has gender i % 2 and age i % 7."""
    rng = np.random.default_rng(seed)
    chance = 1 / (1 + np.arange(MOVIES)) ** 0.7
    movies = [
        rng.choice(MOVIES, rng.integers(15, most), replace=False, p=chance / chance.sum())
        for _ in range(clients)
    ]
    client = np.repeat(np.arange(clients), [len(its) for its in movies])
    movie, gender, age = np.concatenate(movies), client % GENDERS, client % AGES
    columns = [gender, age, movie, gender * MOVIES + movie, age * MOVIES + movie]
    return FederatedData.build(
        client=client,
        ids={"features": np.stack([EDGES[i] + x for i, x in enumerate(columns)], axis=1)},
        label=rng.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"weight": EDGES[-1]},
        fields={"features": "weight"},
        groups={"weight": GROUPS},
    )


def secret_numbers(clients: int, seed: int = 0) -> FederatedData:
    """Clients with 1 to 800 examples each, of 3,000 items that few of them share."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(np.exp(rng.normal(4.6, 1.0, clients)).astype(int) + 1, 800)
    client = np.repeat(np.arange(clients), sizes)
    item = rng.zipf(1.2, len(client)).clip(max=10**6) * 7919 % 3000
    return FederatedData.build(
        client=client,
        ids={"item": item},
        label=np.zeros(len(client), dtype=bool),
        test=np.zeros(len(client), dtype=bool),
        tables={"item": 3000},
    )


def single_holders_named(data: FederatedData, ids: Any, counts: Any) -> tuple[int, int]:
    """Rows of one holder whose holder the server can name from the heat, and all of them.

    The server knows everybody's weight, and names the only client whose weight is the count.
    """
    index, weights = data.index["item"], data.weights("examples").tolist()
    clients, holders = Counter(weights), {}
    for row, owner in zip(index.ids.tolist(), index.owner.tolist(), strict=True):
        holders.setdefault(row, []).append(owner)
    named = alone = 0
    for row, count in zip(ids.tolist(), counts.tolist(), strict=True):
        if len(holders.get(row, [])) != 1:
            continue
        alone += 1
        named += clients[count] == 1 and weights.index(count) == holders[row][0]
    return named, alone


def guesses(asked: np.ndarray, union: np.ndarray, plain: bool = True) -> tuple[int, int]:
    """Gender and age of a client by the rows it asks for, out of a union.

    Of the movies that a client asks for, which variants does it ask for too? If that tells nothing,
    its answers for the rows of gender and age do. plain: whether these are looked at.
    """
    found, wanted = [], np.isin(np.arange(EDGES[-1]), asked)
    movies = np.flatnonzero(wanted[slice(*GROUPS["movie"])])
    for name, own, variants in (("gender×movie", "gender", GENDERS), ("age×movie", "age", AGES)):
        score = np.zeros(variants)
        for variant in range(variants):
            rows = GROUPS[name][0] + variant * MOVIES + movies
            score[variant] = wanted[rows[np.isin(rows, union)]].mean()
        if score.max() == score.min() and plain:
            score = wanted[slice(*GROUPS[own])].astype(float)
        best = np.flatnonzero(score == score.max())
        found.append(int(best[len(movies) % len(best)]))
    return found[0], found[1]


def one_round(fleet: Any, clients: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The union of all clients, and which rows of it each asks for, as the server sees them."""
    from fedrows.algorithm import Round

    cohort = torch.arange(clients)
    opened = fleet.open_round(Round(1, 0.1, clients, float(clients), cohort))
    index = opened.asked["weight"]
    return opened.united.places, [x.numpy() for x in index.ids.split(index.lengths.tolist())]


def one_leaves_and_one_comes(folder: Path) -> tuple[Any, Any, set[int], set[int]]:
    """The heat before and after, and the rows of the leaver and of the joiner."""
    from deployed import CONFIG, examples, shards_of, task_of
    from loopback import federation, fresh

    data = examples(clients=9, rows=40, each=12)
    config = CONFIG | {"privacy": "index", "clients-per-round": 4, "timeout": 5.0}
    job, shards = task_of(data), shards_of(data.select(range(8)), 4)
    fleet, loopback = federation(job, config, shards, folder)
    fleet.gather()
    before = fleet.heat()["item"]
    loopback.here[9] = fresh(job, config, data.select([4, 8]), folder / "n0", "n0")
    del loopback.here[1]  # node n0 has come back elsewhere, with client 8 and without client 0
    fleet.gather()
    after = fleet.heat()["item"]
    return before, after, *(rows_of(data, client) for client in (0, 8))


def rows_of(data: FederatedData, client: int) -> set[int]:
    return set(data.index["item"].select(torch.tensor([client])).ids.tolist())


def differences(before: Any, after: Any, rows: int) -> tuple[set[int], set[int]]:
    """Which rows were counted less, and which more: of who left, and of who came."""
    dense = []
    for heat in (before, after):
        whole = np.zeros(rows)
        whole[heat.ids.numpy()] = heat.counts.numpy()
        dense.append(whole)
    less, more = dense[1] < dense[0], dense[1] > dense[0]
    return set(np.flatnonzero(less).tolist()), set(np.flatnonzero(more).tolist())


def report(folder: Path) -> Sequence[str]:
    """What each attack comes to on the code that is imported."""
    from private_runs import run

    from fedrows.privacy.counting import Counting, heats
    from fedrows.privacy.options import Privacy

    lines = []
    for clients in (16, 32, 100):
        data = secret_numbers(clients)
        heat = heats(data, "examples", Counting("secure"))["item"].heat
        named, alone = single_holders_named(data, heat.ids, heat.counts)
        lines.append(f"N = {clients}: {named} of {alone} single holders named")
    data = ratings(50)
    privacy = Privacy.of("index", secure_sum="arithmetic")
    fleet = run(data, privacy, clients_per_round=50).private
    union, asked = one_round(fleet, 50)
    found = [guesses(rows, union) for rows in asked]
    for which, variants in enumerate((GENDERS, AGES)):
        right = sum(guess[which] == i % variants for i, guess in enumerate(found))
        lines.append(f"{('gender', 'age')[which]}: {right} of 50")
    lines.append(f"rows asked for by a client: {np.mean([len(x) for x in asked]):.0f}")
    first, second, left, came = one_leaves_and_one_comes(folder)
    less, more = differences(first, second, 40)
    lines.append(
        f"leaver and joiner: {len(less & (left - came))} of {len(left - came)} rows of who left, "
        f"{len(more & (came - left))} of {len(came - left)} of who came"
    )
    return lines


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        print("\n".join(report(Path(place))))

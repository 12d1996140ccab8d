"""The secure sum beside Flower's SecAgg+ routines, and what the private union weighs.

    OMP_NUM_THREADS=1 python benchmarks/secure_sum.py [--clients 100] [--values 1000000] [--whole]

masking    one client's words become its upload: a self mask and a mask for each other client, key
           agreement included. Both do the same, block by block in turn; the medians count.
encoding   real numbers become words, rounded at random, right on average.
--whole    all clients and the server, in this process, phase by phase, some clients dropping out.

Flower's part needs flwr (1.41 was measured); without it fedrows is measured alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.speed.blocks import Rounds, medians, seconds_per_round
from fedrows.privacy.keys import AgreementKey, NodeKey, add_stream_, derive, random_words
from fedrows.privacy.protocol import run
from fedrows.privacy.ring import Coding
from fedrows.privacy.secure_sum import client, server
from fedrows.privacy.session import mask_key
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.union import Bloom


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--values", type=int, default=10**6)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--whole", action="store_true")
    typed = parser.parse_args()
    print(f"{typed.clients} clients x {typed.values:,} values, medians of {typed.blocks} blocks\n")
    table("masking", masking(typed.clients, typed.values), typed.blocks)
    table("encoding", encoding(typed.values), typed.blocks)
    print(
        "\nunion of 10^6 features, |S| = 500, K = 50, false positives <= 1 %, bytes up per client"
    )
    for missed in (0.05, 2e-4, 1e-6):
        plan = Bloom.for_sets(10**6, clients=50, held=500, missed=missed)
        size = plan.length * np.dtype(plan.word).itemsize + 64
        print(
            f"{plan.word:8} {plan.cells:,} cells, {plan.hashes} hashes: {size:,} bytes "
            f"({size / 2**20:.2f} MiB), a row is missed with odds <= {plan.missed:.1e}"
        )
    if typed.whole:
        whole(typed.clients, typed.values)


def table(what: str, contenders: dict[str, Rounds], blocks: int) -> None:
    """Measures the contenders in turn and prints their medians."""
    times = medians(seconds_per_round({name: (one, 1) for name, one in contenders.items()}, blocks))
    ours = times["fedrows"]
    for name, seconds in times.items():
        print(f"{what + ', ' + name:32} {seconds * 1e3:10.1f} ms  {seconds / ours:7.1f} x")


def masking(clients: int, values: int) -> dict[str, Rounds]:
    """One client's masking, by fedrows and by Flower's routines."""
    own_key, others = AgreementKey(), [AgreementKey().public for _ in range(clients - 1)]
    vector, context, me = random_words(values, np.uint32), os.urandom(32), clients // 2

    def ours(count: int) -> None:
        for _ in range(count):
            words = vector.copy()
            add_stream_(words, derive(os.urandom(32), b"self" + context))
            for other, public in enumerate(others):
                add_stream_(words, mask_key(own_key, public, context), minus=other < me)

    contenders: dict[str, Rounds] = {"fedrows": ours}
    if (flower := flower_routines()) is not None:
        secret, _ = flower["generate_key_pairs"]()
        publics = [flower["generate_key_pairs"]()[1] for _ in range(clients - 1)]
        quantised = [(vector >> np.uint32(8)).astype(np.int64)]
        shapes, ring = [(values,)], 1 << 32

        def theirs(count: int) -> None:
            for _ in range(count):
                mask = flower["pseudo_rand_gen"](os.urandom(32), ring, shapes)
                words = flower["parameters_addition"](quantised, mask)
                for other, public in enumerate(publics):
                    key = flower["generate_shared_key"](secret, public)
                    mask = flower["pseudo_rand_gen"](key, ring, shapes)
                    act = "parameters_subtraction" if other < me else "parameters_addition"
                    words = flower[act](words, mask)
                flower["parameters_mod"](words, ring)

        contenders["Flower SecAgg+"] = theirs
    return contenders


def encoding(values: int) -> dict[str, Rounds]:
    """One client's numbers as words."""
    numbers = np.random.default_rng(0).uniform(-1, 1, values)
    coding = Coding(range=1, clients=100, precision=1e-4)

    def ours(count: int) -> None:
        for _ in range(count):
            coding.encode(numbers)

    contenders: dict[str, Rounds] = {"fedrows": ours}
    if (flower := flower_routines()) is not None:

        def theirs(count: int) -> None:
            for _ in range(count):
                flower["quantize"]([numbers], 1.0, 1 << 22)

        contenders["Flower SecAgg+"] = theirs
    return contenders


def flower_routines() -> dict[str, Any] | None:
    """Flower's own functions by name; None where it is not installed."""
    try:
        from flwr.common.secure_aggregation import ndarrays_arithmetic, quantization
        from flwr.common.secure_aggregation import secaggplus_utils as utils
        from flwr.common.secure_aggregation.crypto import symmetric_encryption as crypto
    except ImportError:
        return None
    routines = dict(vars(ndarrays_arithmetic)) | {"quantize": quantization.quantize}
    routines |= {"pseudo_rand_gen": utils.pseudo_rand_gen}
    routines |= {"generate_shared_key": crypto.generate_shared_key}
    return routines | {"generate_key_pairs": _key_pairs}


def _key_pairs() -> tuple[Any, Any]:
    """A key pair of the curve that Flower uses."""
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP384R1())
    return secret, secret.public_key()


def whole(clients: int, values: int) -> None:
    """The whole protocol in this process; a tenth of the clients drop out in phase masked."""
    terms = SumTerms("benchmark", tuple(range(clients)), clients * 2 // 3 + 1, values)
    nodes = [NodeKey() for _ in range(clients)]
    registry = {one: node.public for one, node in enumerate(nodes)}
    vector = random_words(values, np.uint32)
    halves = {one: client(terms, one, nodes[one], registry, vector) for one in terms.cohort}
    outcome = run(server(terms, registry), halves, dict.fromkeys(range(clients // 10), 2))
    right = vector * np.uint32(len(outcome.result.clients))
    print(f"\nthe whole sum, {clients // 10} clients dropping out in phase masked")
    print(f"exact: {bool((outcome.result.values == right).all())}")
    for number, phase in enumerate(outcome.phases):
        print(
            f"request {number}: {phase.asked} asked, {phase.answered} answered, "
            f"{phase.bytes_down / phase.asked:,.0f} bytes down and {phase.most_up:,} up per "
            f"client, {phase.client_seconds / phase.asked * 1e3:.1f} ms per client, "
            f"server {phase.server_seconds:.2f} s"
        )


if __name__ == "__main__":
    main()

"""The private mean out of a secure sum in which every client's part has noise already.

    a client sends   its corrected and clipped update over all rows of all tables, in whole
                     steps, and its share of the noise on every number of it
    the server has   ( Σ ū_k + noise ) / D on all rows

All numbers are opened in any case. A client that did not train sends noise alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.keys import MaskWords
from fedrows.privacy.layout import Contribution, OpenedRows, SumLayout
from fedrows.privacy.mechanism import Touched
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.noisy_mean import ClippedMean
from fedrows.privacy.weighted_mean import ClientUpdates, Mean, dense_lines, dense_size


@dataclass(frozen=True)
class DistributedMean(ClippedMean):
    """The client's and the server's part in a mean whose noise is inside the sum."""

    parties: int | None = None  # that add noise: nodes for their clients; each client if None

    @cached_property
    def starts(self) -> dict[str, int]:
        """Where each table's numbers begin; the dense ones come behind."""
        sizes = [self.sizes[table] * width for table, width in self.widths.items()]
        return dict(zip(self.widths, np.cumsum([0, *sizes]).tolist(), strict=False))

    @cached_property
    def coding(self) -> NoisyCoding:
        """How vectors are written, and their noise."""
        numbers = sum(self.sizes[table] * width for table, width in self.widths.items())
        numbers += dense_size(self.dense)
        noise = self.mechanism.client_noise
        assert noise is not None, "this mean is for mechanisms whose clients add noise"
        return NoisyCoding(
            self.mechanism.clip, noise, self.cohort, numbers, self.parties or self.cohort
        )

    def layout(self, union: Mapping[str, np.ndarray]) -> SumLayout:
        """The vector of a round: every number is opened, whatever the union is."""
        return SumLayout({}, {}, self.coding.numbers)

    def contribute(
        self, updates: ClientUpdates, union: Mapping[str, np.ndarray], held: HeldBack
    ) -> Contribution:
        """The clipped updates of the clients; one that did not train has none."""
        exact = self.clipped(updates)
        rows = HeldBack(self.widths).joined(exact, updates.party, updates.names, union)
        extra = dense_lines(exact, self.dense, updates.party, len(updates.names))
        return Contribution(rows, extra, {})

    def vectors(self, layout: SumLayout, sent: Contribution) -> NoisyVectors:
        """The vectors of the clients of a round."""
        return NoisyVectors(self, layout, sent)

    def mean(self, opened: OpenedRows, layout: SumLayout) -> Mean:
        """The private mean out of a sum."""
        touched = {}
        for table, width in self.widths.items():
            start, rows = self.starts[table], self.sizes[table]
            sums = opened.extra[start : start + rows * width].reshape(rows, width).copy()
            every, none = torch.arange(rows), torch.zeros(rows, dtype=torch.float64)
            touched[table] = Touched(every, none, torch.from_numpy(sums))
        return self.released(touched, opened.extra[len(opened.extra) - dense_size(self.dense) :])


@dataclass(frozen=True, eq=False)
class NoisyVectors:
    """The vectors of the clients of one sum, each with noise, whether or not it has trained."""

    how: DistributedMean
    layout: SumLayout
    sent: Contribution

    @property
    def coding(self) -> NoisyCoding:
        """How they are written."""
        return self.how.coding

    def fitting(self) -> np.ndarray:
        """Whether each client's numbers are within the range: what was clipped always is."""
        return np.ones(len(self.sent.extra), dtype=bool)

    def words(self, party: int, name: int | None = None) -> tuple[MaskWords, np.ndarray, MaskWords]:
        """A client's vector: no rows that have holders, and all numbers behind them."""
        none = np.zeros((0, self.layout.piece), dtype=self.coding.dtype)
        return none, np.zeros(0, dtype=bool), self._summed([party], 1)

    def total(self, inside: np.ndarray) -> tuple[MaskWords, np.ndarray, MaskWords]:
        """The sum of some clients' vectors."""
        none = np.zeros(0, dtype=self.coding.dtype)
        clients = np.flatnonzero(inside).tolist()
        return none, np.zeros(0, dtype=np.int64), self._summed(clients, len(clients))

    def together(self) -> MaskWords:
        """The vector of a node for all these clients, with the noise of one party."""
        return self._summed(list(range(len(self.sent.extra))), 1)

    def _summed(self, clients: list[int], parties: int) -> MaskWords:
        steps = self.coding.noises(parties, self.how.source)
        for client in clients:
            places, values = self._vector(client)
            steps[places] += self.coding.rounded(values, self.how.source)
        return self.coding.words(steps)

    def _vector(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's numbers, and where they stand in the whole vector."""
        places, values = [], []
        for table, width in self.how.widths.items():
            index = self.sent.rows.index[table]
            low, high = index.splits[client : client + 2].tolist()
            ids = index.ids[low:high].numpy()[:, None]
            places.append((self.how.starts[table] + ids * width + np.arange(width)).reshape(-1))
            values.append(self.sent.rows.rows[table][low:high].numpy().reshape(-1))
        places.append(np.arange(-dense_size(self.how.dense), 0))  # at the end
        values.append(self.sent.extra[client])
        return np.concatenate(places), np.concatenate(values)

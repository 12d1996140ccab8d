"""The objective that the theory is measured on: regularised logistic regression over a federation.

    f(x) = 1/N Σ_i f_i(x),   f_i(x) = mean over client i's examples of the logistic loss
                                      + λ/2 · Σ of x_m² over m ∈ S(i)

Every client weighs the same, n_m counts clients, there is no bias, and all is float64. Without λ
the Hessian is singular: inside a client crossed one-hot features are collinear.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError


class Objective:
    """f, its gradient and its Hessian, and what single clients contribute to it."""

    def __init__(self, data: FederatedData, ridge: float, least_heat: int = 1) -> None:
        """Of the training examples; rows that fewer than `least_heat` clients hold are left out."""
        ((table, index),) = data.index.items()
        ((_, slots),) = data.slots.items()
        assert isinstance(slots, Tensor), "an example has as many features as any other"
        assert not data.padded, "every id is a feature"
        self.ridge, self.label = ridge, data.train.label.numpy().astype(np.float64)
        self.owner, self.sizes = data.train.owner.numpy(), data.sizes.numpy()  # (n,), (N,)
        self.clients = data.clients
        self._share = 1 / (self.clients * self.sizes[self.owner])  # (n,), an example's part in f
        heat = np.bincount(index.ids.numpy(), minlength=data.tables[table])
        self.rows = np.flatnonzero(heat >= max(least_heat, 1))  # (M,), the ids that stay
        self.heat = heat[self.rows]  # (M,), n_m
        position = np.full(len(heat), -1)
        position[self.rows] = np.arange(len(self.rows))
        held = position[index.ids.numpy()]  # (R,), −1 for what goes
        self.holder, self.held = index.owner.numpy()[held >= 0], held[held >= 0]
        entry = slots.numpy().reshape(len(self.label), -1)
        entry = entry + index.splits.numpy()[self.owner, None]  # (n, L), places in the index
        example, at = np.nonzero(held[entry] >= 0)
        entry = entry[example, at]
        number = np.cumsum(held >= 0) - 1
        self.design = _sparse(example, held[entry], (len(self.label), len(self.rows)))  # (n, M)
        self.blocks = _sparse(example, number[entry], (len(self.label), len(self.held)))  # (n, R)

    @property
    def correction(self) -> np.ndarray:
        """The diagonal of D: N / n_m, (M,)."""
        return self.clients / self.heat

    @cached_property
    def _decay(self) -> np.ndarray:
        """What the regulariser adds to the Hessian's diagonal: λ · n_m / N, (M,)."""
        return self.ridge / self.correction

    def value(self, x: np.ndarray) -> float:
        """f(x)."""
        score = self.design @ x
        loss = np.logaddexp(0, score) - self.label * score
        return float(self._share @ loss + self._decay @ x**2 / 2)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """∇f(x), (M,)."""
        error = self._chance(x) - self.label
        return np.asarray(self.design.T @ (self._share * error) + self._decay * x)

    def hessian(self, x: np.ndarray) -> Any:
        """H = ∇²f(x), a sparse (M, M)."""
        from scipy.sparse import diags_array

        weighted = diags_array(self._share * self._bend(x)) @ self.design
        return (self.design.T @ weighted + diags_array(self._decay)).tocsc()

    def minimum(self, gradient: float = 1e-13) -> np.ndarray:
        """The x at which f is least, by Newton's method with halved steps."""
        from scipy.sparse.linalg import spsolve

        x = np.zeros(len(self.rows))
        while np.abs(down := self.gradient(x)).max() > gradient:
            step = np.asarray(spsolve(self.hessian(x), down))
            length, value, slope = 1.0, self.value(x), float(down @ step)
            if slope < 1e-15 * max(value, 1):  # as low as float64 can tell
                return x - step
            while self.value(x - length * step) > value - 1e-4 * length * slope:
                length /= 2
            x = x - length * step
        return x

    def client_hessian(self, client: int, x: np.ndarray) -> np.ndarray:
        """∇²f_i(x) on the client's own submodel, dense: (|S(i)|, |S(i)|)."""
        examples = np.flatnonzero(self.owner == client)
        entries = np.flatnonzero(self.holder == client)
        block = self.blocks[examples][:, entries].toarray()
        bend = self._bend(x)[examples, None] / len(examples)
        return block.T @ (bend * block) + self.ridge * np.eye(len(entries))

    def most_curved(self, x: np.ndarray) -> float:
        """ρ2: the largest eigenvalue that any client's Hessian has on its own submodel.

        By Lanczos on all W^½ A_i A_i^T W^½ / |D_i| as the blocks of one matrix: the same
        eigenvalues but for zeros. Its entries are not negative, so that a positive start cannot
        miss the largest (Perron and Frobenius).
        """
        from scipy.sparse.linalg import LinearOperator, eigsh

        bend = np.sqrt(self._bend(x) / self.sizes[self.owner])
        blocks, across, size = self.blocks, self.blocks.T.tocsr(), len(bend)

        def times(vector: np.ndarray) -> np.ndarray:
            moved: np.ndarray = bend * (blocks @ (across @ (bend * vector.reshape(-1))))
            return moved

        if size < 3:  # Lanczos needs room
            matrix = np.stack([times(unit) for unit in np.eye(size)])
            return float(np.linalg.eigvalsh(matrix)[-1]) + self.ridge
        operator = LinearOperator((size, size), matvec=times, dtype=np.float64)
        room = min(size, 40)  # vectors to keep: clients have eigenvalues close together
        options = {"k": 1, "v0": bend, "ncv": room, "tol": 1e-12, "return_eigenvectors": False}
        (most,) = eigsh(operator, which="LA", **options)
        return float(most) + self.ridge

    def least_curved(self, x: np.ndarray) -> float:
        """ρ1: the least eigenvalue that any client's Hessian has on its own submodel.

        λ, as soon as one client has more features than examples; else by every eigenvalue.
        """
        least = np.inf
        features = np.bincount(self.holder, minlength=self.clients)
        if (features > self.sizes).any():
            return self.ridge
        for client in np.flatnonzero(features).tolist():
            least = min(least, float(np.linalg.eigvalsh(self.client_hessian(client, x))[0]))
            if least <= self.ridge * (1 + 1e-9):  # there is nothing below
                return self.ridge
        return least

    def _chance(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(0.5 * (1 + np.tanh(self.design @ x / 2)))

    def _bend(self, x: np.ndarray) -> np.ndarray:
        """The second derivative of every example's loss by its score: p · (1 − p)."""
        chance = self._chance(x)
        return chance * (1 - chance)


def _sparse(row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> Any:
    require_scipy()
    from scipy.sparse import coo_array

    return coo_array((np.ones(len(row)), (row, column)), shape).tocsr()


def require_scipy() -> None:
    """Raises an error that says how to install SciPy, where it is missing."""
    try:
        import scipy  # noqa: F401
    except ImportError:
        raise FedrowsError(
            "The theory of the paper needs the package scipy: pip install fedrows[paper]."
        ) from None

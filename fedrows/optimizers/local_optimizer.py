"""The local optimisers, each exactly `torch.optim` on the client's submodel as dense tensors.

    sgd        x −= lr·g
    momentum   v ← μ·v + g;      x −= lr·v                       torch.optim.SGD(momentum=μ)
    adagrad    s ← s + g²;       x −= lr·g / (√s + ε)            torch.optim.Adagrad
    adam       m ← μ·m + (1−μ)·g;   v ← β·v + (1−β)·g²           torch.optim.Adam, betas=(μ, β)
               x −= lr·(m / (1−μᵗ)) / (√(v / (1−βᵗ)) + ε)
    adamw      adam, whose weight decay is apart from g          torch.optim.AdamW

A row that is not in the step's batch has g = 0, but all rows of the client's submodel take part in
every step: momentum goes on moving them. A step costs O(rows of the cohort), as with SGD.

Weight decay adds λ·x to g before the optimiser uses it (L2), in `adamw` to the step instead. It
acts on the rows that the client holds and on the dense tensors, and on nothing else.

A client that sits a step out (`active` = 0) does not move, and neither does its state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from fedrows.plan import Plan
from fedrows.rows.params import Submodels


class LocalOptimizer(ABC):
    """What turns the gradients of K clients into steps, for the length of a round."""

    def __init__(self, plan: Plan) -> None:
        self.decay, self.momentum = plan.weight_decay, plan.local_momentum
        self.beta2 = plan.local_beta2
        self.apart = plan.optimizer == "adamw"  # weight decay is no part of the gradient
        self.state: dict[str, Submodels] = {}
        self.counts: Tensor | None = None  # steps so far: one number, or (K,) where some sit out

    @abstractmethod
    def direction(self, gradient: Submodels, active: Tensor | None) -> Submodels:
        """What is subtracted, lr times; moves the state, and may use the gradient's memory."""

    def step_(
        self, here: Submodels, gradient: Submodels, active: Tensor | None, lr: float | Tensor
    ) -> None:
        """Takes a step from where the clients are; uses up the gradient."""
        if self.decay and not self.apart:
            gradient.add_(here, self.decay)
        direction = self.direction(gradient, active)
        if self.decay and self.apart:
            direction.add_(here, self.decay)
        if active is not None:
            direction.scale_(active)  # the whole step, the algorithm's own terms included
        here.add_(direction, -lr)

    def restart_(self) -> None:
        """Goes back to the beginning of a round, in the same memory."""
        with torch.inference_mode():  # where the state may have been made
            if self.counts is not None:
                self.counts.zero_()
            for part in self.state.values():
                torch._foreach_zero_(_tensors(part))

    def _zeros(self, name: str, like: Submodels) -> Submodels:
        """A part of the state, zero before the first step; its index is that of the gradient.

        A recorded step is replayed for other cohorts, in the same memory: an index kept from the
        first one would name the wrong owners.
        """
        if name not in self.state:
            self.state[name] = like.map(_zeros)
        return replace(self.state[name], index=like.index)

    def _counts(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The steps so far, in the float32 that PyTorch's kernels ask for."""
        if self.counts is None:
            self.counts = torch.zeros(shape, dtype=torch.float32, device=like.device)
        return self.counts


class LocalSGD(LocalOptimizer):
    """Plain SGD."""

    def direction(self, gradient: Submodels, active: Tensor | None) -> Submodels:
        return gradient


class LocalMomentum(LocalOptimizer):
    """SGD with momentum, without dampening."""

    def direction(self, gradient: Submodels, active: Tensor | None) -> Submodels:
        velocity = self._zeros("velocity", gradient)
        if active is None:
            torch._foreach_mul_(_tensors(velocity), self.momentum)
            torch._foreach_add_(_tensors(velocity), _tensors(gradient))
            return velocity
        velocity.scale_(active * self.momentum + (1 - active))
        gradient.scale_(active)
        velocity.add_(gradient)
        return velocity.map(torch.clone)


class LocalAdagrad(LocalOptimizer):
    """Adagrad, whose sums start at 0."""

    epsilon = 1e-10

    def direction(self, gradient: Submodels, active: Tensor | None) -> Submodels:
        squares = self._zeros("squares", gradient)
        own, g = _tensors(squares), _tensors(gradient)
        if active is not None:
            gradient.scale_(active)
        torch._foreach_addcmul_(own, g, g)
        roots = _roots(own)
        torch._foreach_add_(roots, self.epsilon)
        torch._foreach_div_(g, roots)
        return gradient


class LocalAdam(LocalOptimizer):
    """Adam with corrections of its bias, without amsgrad."""

    epsilon = 1e-8

    def step_(
        self, here: Submodels, gradient: Submodels, active: Tensor | None, lr: float | Tensor
    ) -> None:
        alike = all(x.is_contiguous() for x in _tensors(here))
        if active is None and alike and not isinstance(lr, Tensor):
            self._fused_(here, gradient, lr, self.decay)
        else:
            super().step_(here, gradient, active, lr)

    def direction(self, gradient: Submodels, active: Tensor | None) -> Submodels:
        if active is not None:
            return self._of_some(gradient, active)
        step = gradient.map(_zeros)
        self._fused_(step, gradient, -1.0, 0.0)  # subtracts −1 times the direction from 0
        return step

    def _fused_(self, here: Submodels, gradient: Submodels, lr: float, decay: float) -> None:
        """A step in one pass over the numbers, by PyTorch's own kernel."""
        kernel = torch._fused_adamw_ if self.apart else torch._fused_adam_
        moved, first, second = _tensors(here), *self._moments(gradient)
        count = self._counts(moved[0], ())
        count += 1
        kernel(
            moved,
            [x.contiguous() for x in _tensors(gradient, here)],
            _tensors(first, here),
            _tensors(second, here),
            [],
            [count] * len(moved),
            lr=lr,
            beta1=self.momentum,
            beta2=self.beta2,
            weight_decay=decay,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _moments(self, like: Submodels) -> tuple[Submodels, Submodels]:
        return self._zeros("first", like), self._zeros("second", like)

    def _of_some(self, gradient: Submodels, active: Tensor) -> Submodels:
        """The direction where some sit the step out; every client's steps are counted apart."""
        first, second = self._moments(gradient)
        counts = self._counts(active, active.shape)
        counts += active
        taken = counts.double().clamp(min=1)  # (K,)
        a, b = 1 - self.momentum**taken, (1 - self.beta2**taken).sqrt()
        change = gradient.map(torch.sub, first)
        change.scale_(active * (1 - self.momentum))
        first.add_(change)
        change = gradient.map(torch.square)
        change.add_(second, -1)
        change.scale_(active * (1 - self.beta2))
        second.add_(change)
        root = iter(_roots(_tensors(second)))
        roots = second.map(lambda _: next(root))
        roots.scale_((1 / b).to(active))
        torch._foreach_add_(_tensors(roots), self.epsilon)
        step = first.map(torch.div, roots)
        step.scale_((1 / a).to(active))
        return step


OPTIMIZERS: dict[str, type[LocalOptimizer]] = {
    "sgd": LocalSGD,
    "momentum": LocalMomentum,
    "adagrad": LocalAdagrad,
    "adam": LocalAdam,
    "adamw": LocalAdam,
}


def local_optimizer(plan: Plan) -> LocalOptimizer:
    """The plan's optimiser at the beginning of a round."""
    return OPTIMIZERS[plan.optimizer](plan)


def _tensors(part: Submodels, order: Submodels | None = None) -> list[Tensor]:
    """All numbers of some submodels, in the order of others if those are given."""
    order = order or part
    return [*(part.rows[t] for t in order.rows), *(part.dense[d] for d in order.dense)]


def _zeros(like: Tensor) -> Tensor:
    """Zeros that lie in memory one after another, as PyTorch's fused kernels need."""
    return torch.zeros_like(like, memory_format=torch.contiguous_format)


def _roots(squares: list[Tensor]) -> list[Tensor]:
    """√x; what is added is far below any ε, and spares the CPU zeros, whose roots are slow."""
    roots = list(torch._foreach_add(squares, 1e-37))
    torch._foreach_sqrt_(roots)
    return roots

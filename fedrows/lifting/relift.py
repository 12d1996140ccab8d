"""How a module was lifted, in plain facts, and the same module lifted again by them.

A bundle carries the facts, so that a loaded model trains as it was trained: with its personal parts
and with its ridge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.ridged import Ridged
from fedrows.model import Loss, Model


def lifting_of(model: Lifted) -> dict[str, Any]:
    """What `lift` needs to know beside the module and the data, as JSON."""
    tables = {path for paths in model.embeddings.values() for path in paths}
    kinds = nn.Embedding | nn.EmbeddingBag
    layers = [name for name, x in model.module.named_modules() if isinstance(x, kinds)]
    return {
        "embeddings": model.embeddings,
        "dense": [name for name in layers if name not in tables],
        "personal": [] if model.personal is None else list(model.personal.shapes),
        "one_by_one": model.one_by_one,
        **({"ridge": model.ridge, "first": model.first} if isinstance(model, Ridged) else {}),
    }


def lift(
    module: nn.Module, data: FederatedData, loss: Loss | None, lifting: Mapping[str, Any]
) -> Lifted:
    """The module lifted as `lifting` says; facts that are not there are as in `Lifted`."""
    more: dict[str, Any] = {
        "loss": loss,
        "dense": lifting.get("dense", ()),
        "personal": lifting.get("personal", ()),
        "one_by_one": bool(lifting.get("one_by_one")),
    }
    embeddings = lifting.get("embeddings")
    if not lifting.get("ridge"):
        return Lifted(module, data, embeddings, **more)
    return Ridged(module, data, embeddings or {}, lifting["ridge"], lifting["first"], **more)


def with_personal_parts(model: Model, data: FederatedData, personal: Sequence[str]) -> Lifted:
    """The same model with parts that stay on their clients.

    data: as `with_personal` returns them. personal: names of parameters and submodules.
    """
    if not isinstance(model, Lifted):
        raise ModelError(
            f"`personal` names {personal[0]!r}, but the model is {type(model).__name__}, which is "
            "no torch module and has no parts: leave it out."
        )
    made = lift(model.module, data, model.loss, {**lifting_of(model), "personal": personal})
    made.options, made.biases = model.options, model.biases
    return made  # shares no candidates: every example is scored by its own client's parts

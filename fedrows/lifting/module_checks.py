"""Checks of a module when the model is built: what cannot be lifted over a cohort, and why."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedrows.errors import ModelError
from fedrows.model import Loss

_TORCH = str(Path(torch.__file__).parent)
FALL_BACK = "or train one client after another with one_by_one=True"

_RECURRENT: dict[type[nn.Module], str] = {
    nn.LSTM: "LSTM",
    nn.LSTMCell: "LSTM",
    nn.GRU: "GRU",
    nn.GRUCell: "GRU",
    nn.RNN: "GRU",
    nn.RNNCell: "GRU",
}
_LOOKS = (  # what vmap says of code that looks at the values of a tensor
    "data-dependent control flow",
    ".item()",
    "data pointer of Tensor that doesn't have storage",
    "dynamic shape",
)


def embeddings_of(
    module: nn.Module,
    tables: Mapping[str, int],
    padded: frozenset[str],
    given: Mapping[str, str | Sequence[str]],
    dense: Sequence[str],
) -> dict[str, list[str]]:
    """The paths of each table's embeddings, usually one; a ModelError unless all fit.

    `dense` are embeddings of no table, which every client holds whole.
    """
    for table in given:
        if table not in tables:
            raise ModelError(
                f"`embeddings` maps {table!r}, but the tables of the data are {', '.join(tables)}."
            )
    paths = {}
    for table, rows in tables.items():
        named = given.get(table, table)
        paths[table] = [named] if isinstance(named, str) else list(named)
        if not paths[table]:
            raise ModelError(f"`embeddings` maps {table!r} to no embedding: name at least one.")
        for path in paths[table]:
            _check_embedding(module, path, table, rows, table in padded)
    flat = [path for embeddings in paths.values() for path in embeddings]
    for table, embeddings in paths.items():
        twice = [path for path in embeddings if flat.count(path) > 1]
        if twice:
            raise ModelError(
                f"Table {table!r} and another are both mapped to embedding {twice[0]!r}: let their "
                "fields read one table of the data."
            )
    kinds = nn.Embedding | nn.EmbeddingBag
    known = [name for name, part in module.named_modules() if isinstance(part, kinds)]
    for name in dense:
        if name not in known:
            raise ModelError(
                f"`dense` names {name!r}, but the embeddings of the module are "
                f"{', '.join(known) or 'none'}: leave it out; what is no embedding is dense anyway."
            )
        if name in flat:
            raise ModelError(
                f"`dense` names {name!r}, which is the embedding of a table of the data: name it "
                "in one place."
            )
    for name, part in module.named_modules():
        if isinstance(part, kinds) and name not in [*flat, *dense]:
            raise ModelError(
                f"Embedding {name!r} belongs to no table of the data ({', '.join(tables)}): name "
                "it in `embeddings`, or in `dense` if every client is to hold it whole."
            )
    return paths


def check_layers(module: nn.Module, one_by_one: bool) -> None:
    """Raises a ModelError for a layer of PyTorch that is known not to work, and says what does."""
    for path, part in module.named_modules():
        own = type(part).forward  # a subclass with a forward of its own may well work
        known = [kind for kind in _RECURRENT if own is kind.forward]
        if known and not one_by_one:
            raise ModelError(
                f"Submodule {path!r} is an nn.{type(part).__name__}, which cannot be lifted over a "
                f"cohort: use fedrows.nn.{_RECURRENT[known[0]]}, {FALL_BACK}."
            )
        if isinstance(part, _BatchNorm) and own is _BatchNorm.forward and part.training:
            # Also one by one: nobody would see the statistics that a client keeps.
            raise ModelError(
                f"Submodule {path!r} is an nn.{type(part).__name__}, whose running statistics no "
                "client shares with another: use fedrows.nn.BatchNorm, or call eval() on it to "
                "keep them as they are."
            )


def check_scores(
    module: nn.Module, scores: Any, label: Tensor, loss: Loss, candidates: int | None = None
) -> None:
    """Raises a ModelError unless there is one score, and one loss, for each example.

    candidates: how many of them each example has, if it is ranked; each must get a score.
    """
    name, count = type(module).__name__, len(label)
    if not isinstance(scores, Tensor):
        raise ModelError(f"{name} gave a {type(scores).__name__}, not a tensor of scores.")
    if candidates is not None and scores.shape != (count, candidates):
        raise ModelError(
            f"{name} gave scores of shape {tuple(scores.shape)} for {count} examples with "
            f"{candidates} candidates each: it must give a score for each candidate, shape "
            f"({count}, {candidates})."
        )
    classes = not label.is_floating_point() or candidates is not None
    if scores.shape[:1] != label.shape or scores.dim() != 1 + classes:
        wanted = f"({count}, classes)" if classes else f"({count},)"
        raise ModelError(
            f"{name} gave scores of shape {tuple(scores.shape)} for {count} examples: it must give "
            f"{'scores' if classes else 'one score'} for each, shape {wanted}."
        )
    losses = loss(scores, as_label(label, scores))
    if losses.shape != label.shape:
        raise ModelError(
            f"The loss of {count} examples has shape {tuple(losses.shape)}: it must be one number "
            f"for each, shape ({count},), not their mean."
        )


def as_label(label: Tensor, scores: Tensor) -> Tensor:
    """Labels in the dtype of the scores, unless they are classes."""
    return label.to(scores.dtype) if label.is_floating_point() else label


@contextmanager
def no_draws(module: nn.Module) -> Iterator[None]:
    """Raises a ModelError if anything inside draws from one of torch's global generators."""
    devices = {x.device for x in module.parameters() if x.is_cuda}

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]

    before = states()
    yield
    if not all(torch.equal(a, b) for a, b in zip(before, states(), strict=True)):
        raise ModelError(
            f"{type(module).__name__} draws random numbers from torch's global generator: use "
            "nn.Dropout, torch.rand_like or torch.randn_like, and only while `self.training`."
        )


def explain(module: nn.Module, error: Exception) -> str:
    """What in the module stopped it from being lifted, and what to write instead."""
    message, line = str(error), _place(module, error)
    op = re.search(r"aten::\w+", message)
    if any(sign in message for sign in _LOOKS):
        return (
            f"{line} looks at the values of a tensor (a branch, .item() or a mask used as an "
            "index), which differ from client to client: use torch.where"
        )
    if op and "atching rule" in message:
        return f"{line} uses {op[0]}, which PyTorch has no batching rule for: write it otherwise"
    if "randomness error mode" in message:
        return (
            f"{line} draws random numbers from torch's global generator: use dropout, or "
            "torch.rand_like and torch.randn_like"
        )
    return f"{line} fails under torch.vmap ({_in_short(error)}): write it otherwise"


def where(module: nn.Module, error: Exception) -> str | None:
    """The innermost submodule that was running when an error was raised, with its line."""
    paths = {part: path for path, part in module.named_modules()}
    location, step = None, error.__traceback__
    while step is not None:
        part, code = step.tb_frame.f_locals.get("self"), step.tb_frame.f_code
        if isinstance(part, nn.Module) and part in paths:
            line = f"line {step.tb_lineno} of {Path(code.co_filename).name}"
            about = [] if code.co_filename.startswith(_TORCH) else [line]
            if paths[part]:
                location = f"Submodule {paths[part]!r} ({', '.join([type(part).__name__, *about])})"
            else:
                location = type(part).__name__ + "".join(f" ({line})" for line in about)
        step = step.tb_next
    return location


def with_place(module: nn.Module, error: ModelError) -> ModelError:
    """The same error, naming the submodule that raised it."""
    line = where(module, error)
    return error if line is None else ModelError(f"{line}: {error}")


def cannot_score(module: nn.Module, fields: Sequence[str], error: Exception) -> ModelError:
    """What to say of a module whose forward fails on the data, lifted or not."""
    return ModelError(
        f"{_place(module, error)} fails on two examples of the data ({_in_short(error)}): its "
        f"forward must take {', '.join(fields)} by name."
    )


def cannot_train(module: nn.Module, error: Exception) -> ModelError:
    """What to say of a module that fails in training, however its clients are trained."""
    if isinstance(error, IndexError) and str(error).startswith("Target"):  # of the cross-entropy
        return ModelError(
            f"{_place(module, error)} has a score for each row of a table, but a client holds some "
            "of the rows only: let an example look up the rows of its candidates and score these, "
            "as fedrows.nn.TiedOutput does, or give the scores a layer of their own."
        )
    return ModelError(
        f"{_place(module, error)} cannot be trained on the data ({_in_short(error)}): its scores "
        "must depend on its numbers through operations that have a gradient."
    )


def slow_operations(module: nn.Module, heard: list[warnings.WarningMessage]) -> str | None:
    """A note on operations that PyTorch lifts by a loop; other warnings are passed on."""
    slow = []
    for warning in heard:
        op = re.search(r"batching rule for (aten::\w+)", str(warning.message))
        if op:
            slow.append(op[1])
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if not slow:
        return None
    return (
        f"{type(module).__name__} uses {', '.join(dict.fromkeys(slow))}, which PyTorch computes "
        "for one client after another, because it has no batching rule."
    )


def _place(module: nn.Module, error: Exception) -> str:
    return where(module, error) or type(module).__name__


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def _check_embedding(module: nn.Module, path: str, table: str, rows: int, padded: bool) -> None:
    """Raises a ModelError unless the embedding at a path can stand for a table of the data."""
    kinds = nn.Embedding | nn.EmbeddingBag
    try:
        part = module.get_submodule(path)
    except AttributeError:
        known = [name for name, m in module.named_modules() if isinstance(m, kinds)]
        raise ModelError(
            f"The module has no submodule {path!r} for table {table!r}; its embeddings are "
            f"{', '.join(known) or 'none'}: rename one, or map the table to it in `embeddings`."
        ) from None
    if not isinstance(part, kinds):
        raise ModelError(f"Submodule {path!r} is a {type(part).__name__}, not an nn.Embedding.")
    if part.num_embeddings != rows:
        raise ModelError(
            f"Embedding {path!r} has {part.num_embeddings} rows, but table {table!r} of the data "
            f"has {rows}: make them equal."
        )
    asked = {
        f"padding_idx={part.padding_idx}": part.padding_idx is not None and not padded,
        "max_norm": part.max_norm is not None,
        "scale_grad_by_freq": part.scale_grad_by_freq,
        "sparse": part.sparse,
    }
    if any(asked.values()):
        raise ModelError(
            f"Embedding {path!r} uses {', '.join(n for n, used in asked.items() if used)}, which a "
            f"cohort cannot honour: make it a plain nn.{type(part).__name__}."
        )
    if padded and part.padding_idx != 0:
        raise ModelError(
            f"Embedding {path!r} has padding_idx={part.padding_idx}, but id 0 of table {table!r} "
            "means nothing: give it padding_idx=0."
        )
    if not part.weight.requires_grad:
        raise ModelError(f"Embedding {path!r} is frozen, but the rows of a table are trained.")
    for name, x in module.named_parameters(remove_duplicate=False):
        if x is part.weight and name != f"{path}.weight":
            raise ModelError(
                f"Embedding {path!r} shares its weight with {name!r}, which would need every row "
                "while a client holds some of them only: look up the rows of the candidates that "
                f"an example has, and score these, as fedrows.nn.TiedOutput does, or give {name!r} "
                "a weight of its own."
            )


def no_buffer_changed(
    module: nn.Module, before: Mapping[str, int], now: Mapping[str, Tensor]
) -> None:
    """Raises a ModelError if training writes into a buffer, which all clients would share."""
    for name, version in before.items():
        if now[name]._version != version:
            raise ModelError(
                f"{type(module).__name__} writes into its buffer {name!r} while it trains, which "
                "clients cannot share: keep running numbers out of the model."
            )

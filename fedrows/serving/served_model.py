"""A bundle in use: `fedrows.load(bundle)` predicts, recommends, evaluates and adapts.

served = fedrows.load("model.fedrows")
served.predict(frame).probabilities           # (n,), in the order of the frame
served.recommend(["i3", "i8"], k=10).items
served.adapt(examples_of_a_new_client).predict(frame)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrows.data.encode_rows import EncodedRows, KnownValues, encode
from fedrows.data.frame_sources import columns_in
from fedrows.data.values import text_of, texts
from fedrows.errors import BundleError, DataError, ModelError
from fedrows.measure.metrics import accuracy, auc, class_accuracy, grouped_auc, mean_loss
from fedrows.model import LOSSES, Loss
from fedrows.options import known_keywords
from fedrows.serving.bundle import Bundle, open_bundle
from fedrows.serving.onnx_scorer import OnnxScorer
from fedrows.serving.rebuild import GivenModel, TorchScorer, rebuild
from fedrows.serving.recommend import (
    AdaptedTo,
    Predictions,
    Recommendations,
    predictions,
    recommend,
)

MEASURED = ("binary", "classes", "numbers")  # labels that evaluate and adapt take
_ENTRIES = 2**18  # ids and numbers that are scored at once


class Scorer(Protocol):
    """Whatever gives scores to examples."""

    @property
    def dtype(self) -> torch.dtype:
        """What numbers are given as."""

    def scores(self, fields: dict[str, Tensor]) -> Tensor:
        """The score of every example."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A trained model that takes data as people have them."""

    bundle: Bundle
    scorer: Scorer
    known: KnownValues
    adapted: AdaptedTo | None = None

    @property
    def metrics(self) -> dict[str, Any] | None:
        """What the model was worth when its run last evaluated it."""
        return self.bundle.metrics

    def predict(self, frame: Any) -> Predictions:
        """The score and the probability of every row of a frame, or of a mapping of columns."""
        encoded = self.encode(frame)
        scores = encoded.in_order(self.scores(encoded))
        return predictions(scores, self.bundle.encoder.labels, self.notes(encoded))

    def evaluate(self, frame: Any) -> dict[str, Any]:
        """Loss, accuracy, AUC and GAUC on the rows of a frame, which must have labels.

        NaN stands for what the labels do not define; GAUC needs the column of the client. The loss
        is the model's own, None if it is not known here.
        """
        encoder, encoded = self.bundle.encoder, self.encode(frame, labels=True)
        if not encoded.labelled:
            raise DataError(f"The frame has no column {encoder.label!r}, the label: add it.")
        if encoder.labels not in MEASURED:
            raise ModelError(
                f"The model's labels are {encoder.labels}, but evaluate measures "
                f"{', '.join(MEASURED)}: use the metrics of its run."
            )
        examples, scores = encoded.examples, self.scores(encoded)
        label = examples.label.to(scores.dtype if encoder.labels != "classes" else torch.int64)
        clients = None if encoded.clients is None else len(encoded.clients)
        measured = {
            "rows": len(examples),
            "clients": clients,
            "loss": None if self._loss is None else mean_loss(self._loss(scores, label)),
        }
        if encoder.labels == "classes":
            measured["accuracy"] = class_accuracy(scores, label)
        if encoder.labels == "binary":
            measured |= {"accuracy": accuracy(scores, label), "auc": auc(scores, label)}
            if clients is not None:
                measured["gauc"] = grouped_auc(scores, label, examples.owner)[0]
        return measured

    @known_keywords
    def recommend(
        self,
        history: Sequence[Any] | None = None,
        k: int = 10,
        *,
        client: Any = None,
        context: Mapping[str, Any] | None = None,
        candidates: Any = None,
        exclude: Sequence[Any] | None = None,
    ) -> Recommendations:
        """The k items with the highest scores.

        history: items of the client, which are not recommended again. client: its name, for the
        columns that hold it. context: other columns that the model reads, by name. candidates: the
        items to choose from, or a frame with a row for each; by default all. exclude: items of all
        to leave out, instead of the history.
        """
        return recommend(self, history, k, client, context, candidates, exclude)

    @known_keywords
    def adapt(self, frame: Any, *, steps: int = 20, lr: float = 0.3) -> ServedModel:
        """The model of one client, whose own rows were fitted to its examples.

        frame: rows of that client alone, with labels. Each of the steps takes all rows. Whatever
        the clients share stays as it is, and this model is not changed.
        """
        encoder, scorer = self.bundle.encoder, self.scorer
        if not self._own:
            raise ModelError(
                "The model has no local table and no personal part: every client has the same "
                "numbers, and there is nothing to adapt."
            )
        if not isinstance(scorer, TorchScorer):
            raise BundleError("An ONNX file has no gradients: load the bundle with its module.")
        if encoder.labels not in MEASURED:
            raise ModelError(
                f"The model's labels are {encoder.labels}, but adapt is for {', '.join(MEASURED)}."
            )
        if self._loss is None:
            raise BundleError("The model was trained with a loss of its own: give it to load.")
        if not isinstance(steps, Integral) or steps < 1:
            raise DataError(f"steps is {steps!r}, but must be a whole number above 0.")
        if not isinstance(lr, Real) or not 0 < lr < inf:
            raise DataError(f"lr is {lr!r}, but must be a number above 0.")
        encoded = self.encode(frame, labels=True)
        if not encoded.labelled:
            raise DataError(f"The frame has no column {encoder.label!r}, the label: add it.")
        client = None
        if encoded.clients is not None:
            if len(encoded.clients) > 1:
                some = ", ".join(repr(x) for x in encoded.clients[:3].tolist())
                raise DataError(
                    f"The frame has {len(encoded.clients)} clients ({some}, …), but a model is "
                    "adapted to one: give its rows alone."
                )
            client = encoded.clients.tolist()[0]
        examples = encoded.examples.to(torch.device("cpu"), scorer.dtype)
        adapted = AdaptedTo(client, self._local_values(frame))
        fitted = scorer.adapted(examples, encoder, steps, lr)
        return replace(self, scorer=fitted, adapted=adapted)

    def encode(self, frame: Any, *, labels: bool = False) -> EncodedRows:
        """The rows of a frame as the model takes them; of an adapted model, its client's alone.

        labels: whether labels and weights are read; those of new rows may be missing or empty.
        """
        encoded = encode(frame, self.bundle.encoder, self.known, labels=labels)
        if self.adapted is not None:
            self._check_client(frame, encoded, self.adapted)
        return encoded

    def scores(self, encoded: EncodedRows) -> Tensor:
        """The score of every encoded row, in their own order: (n,) or (n, C)."""
        examples = encoded.examples.to(torch.device("cpu"), self.scorer.dtype)
        width = sum(prod(x.shape[1:]) for x in examples.fields(torch.arange(1)).values())
        step = max(1, _ENTRIES // max(width, 1))
        some = torch.arange(len(examples)).split(step)
        return torch.cat([self._scores(examples.fields(part)) for part in some])

    def _scores(self, fields: dict[str, Tensor]) -> Tensor:
        """The scores of some examples; a model that ranks gets the item as its one candidate."""
        encoder = self.bundle.encoder
        if encoder.labels != "ranking" or encoder.target is None:
            return self.scorer.scores(fields)
        item = encoder.target[0]
        return self.scorer.scores({**fields, item: fields[item].unsqueeze(1)}).squeeze(1)

    def notes(self, encoded: EncodedRows) -> tuple[str, ...]:
        """What is worth knowing about the scores of encoded rows."""
        encoder, notes = self.bundle.encoder, []
        for column, count in encoded.unknown.items():
            table = encoder.features[column].table
            if table not in encoder.local:
                how = "read the row of unknown values"
                if encoder.tables[table].unknown is None:
                    how = "are left out of their lists"
                notes.append(
                    f"Column {column!r}: {count} values are not in the vocabulary and {how}."
                )
        if self._own and self.adapted is None:
            notes.append(
                f"{self._own} stay with their clients, so every client is scored with start "
                "values: adapt the model to a client first."
            )
        return tuple(notes)

    @property
    def _own(self) -> str:
        """What every client has for itself, in words; "" if there is nothing."""
        local = ", ".join(sorted(self.bundle.encoder.local))
        parts = ", ".join(self.bundle.model.get("personal", ()))
        words = [f"rows of {local}"] * bool(local) + [f"personal parts {parts}"] * bool(parts)
        return f"The {' and '.join(words)}" if words else ""

    @property
    def _loss(self) -> Loss | None:
        """What the model was trained to lower; None if that is not known here."""
        usual = LOSSES[self.bundle.encoder.labels]
        loss = self.scorer.model.loss if isinstance(self.scorer, TorchScorer) else usual
        return None if self.bundle.model["own_loss"] and loss is usual else loss

    def _local_values(self, frame: Any) -> dict[str, frozenset[str]]:
        """The texts that a frame has in the columns of local tables."""
        features, local = self.bundle.encoder.features, self.bundle.encoder.local
        names = [column for column, feature in features.items() if feature.table in local]
        columns = columns_in(frame, names) if names else {}
        values = {}
        for column in names:
            own = np.asarray(list(columns[column]), dtype=object)
            values[column] = frozenset(texts(column, own.ravel(), features[column].kind)[0])
        return values

    def _check_client(self, frame: Any, encoded: EncodedRows, adapted: AdaptedTo) -> None:
        """Raises a DataError if a row is not of the client that the model was adapted to."""
        names = (
            () if encoded.clients is None or adapted.client is None else encoded.clients.tolist()
        )
        others = [x for x in names if not _same_client(x, adapted.client)]
        for column, own in self._local_values(frame).items():
            others += sorted(own - adapted.values[column])
        if others:
            raise DataError(
                f"The model was adapted to client {adapted.client!r}, but a row is of "
                f"{others[0]!r}: adapt the model that was loaded to each client."
            )


def _same_client(one: Any, other: Any) -> bool:
    """Whether two names are one client's: as in hashes, 5 and "5" are."""
    try:
        return text_of(one) == text_of(other)
    except ValueError:  # neither numbers nor text nor times
        return bool(one == other)


@known_keywords
def load(
    path: str | Path,
    module: GivenModel | None = None,
    *,
    onnx: bool = False,
    loss: Loss | None = None,
) -> ServedModel:
    """The model of a bundle, ready to be asked.

    module: of an own module, the module, its `build(data, seed)`, or the reference of that, such as
    recommender.py:build. Without it the ONNX file in the bundle is used, if there is one.
    onnx: use the ONNX file in any case. loss: the own loss of a model that is to be adapted.
    """
    bundle = open_bundle(path)
    known = KnownValues(bundle.encoder, bundle.vocabulary)
    unnamed = module is None and bundle.model["name"] is None
    if onnx or (unnamed and bundle.onnx is not None):
        return ServedModel(bundle, OnnxScorer(bundle), known)
    return ServedModel(bundle, rebuild(bundle, module, loss), known)

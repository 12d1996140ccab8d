"""The scores of a bundle from its ONNX file, which needs onnxruntime but no module."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrows.errors import BundleError
from fedrows.serving.bundle import Bundle

_TYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64}


class OnnxScorer:
    """Scores by ONNX Runtime, on the CPU."""

    def __init__(self, bundle: Bundle) -> None:
        if bundle.onnx is None:
            raise BundleError(
                f"{bundle.path} has no ONNX file: export the run again with fedrows[onnx] "
                "installed, or load it with its module."
            )
        try:
            runtime = importlib.import_module("onnxruntime")
        except ImportError:
            raise BundleError(
                "Scoring by ONNX needs the package onnxruntime: install it, or give the module."
            ) from None
        try:
            self._session: Any = runtime.InferenceSession(
                bundle.onnx, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # those of ONNX Runtime have no class in common
            raise BundleError(
                f"The ONNX file in {bundle.path} cannot be used ({' '.join(str(error).split())}): "
                "export the run again, or load it with its module."
            ) from error
        columns = {*bundle.encoder.features, *bundle.encoder.numbers}
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if not {x.name for x in inputs} <= columns or "score" not in {x.name for x in outputs}:
            raise BundleError(
                f"The ONNX file in {bundle.path} does not give scores of its columns: export the "
                "run again, or load it with its module."
            )
        self._inputs = {x.name: x for x in self._session.get_inputs()}
        floats = [_TYPES[x.type] for x in self._inputs.values() if x.type in _TYPES]
        self.dtype = floats[0] if floats else torch.float32
        self._lists = {n for n, x in bundle.encoder.features.items() if x.length is not None}

    def scores(self, fields: dict[str, Tensor]) -> Tensor:
        inputs: dict[str, np.ndarray] = {}
        for name, facts in self._inputs.items():
            column = fields[name]
            if name in self._lists:
                fixed = facts.shape[1]
                size = fixed if isinstance(fixed, int) else max(2, column.shape[1])
                if column.shape[1] > size:
                    raise BundleError(
                        f"The ONNX file takes lists of {size} in field {name!r}, but one has "
                        f"{column.shape[1]}: cut it, or load the bundle with its module."
                    )
                column = F.pad(column, (0, size - column.shape[1]))  # (n, L) → (n, size)
            inputs[name] = column.to(_TYPES.get(facts.type, column.dtype)).numpy()
        return torch.from_numpy(self._session.run(["score"], inputs)[0])

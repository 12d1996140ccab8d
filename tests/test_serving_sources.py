"""Whatever holds rows is taken by every question to a served model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from served import COLUMNS, shop

import fedrows
from fedrows import FederatedData
from fedrows.models import mf
from fedrows.runs.export import Trained
from fedrows.serving.bundle import save_bundle


def held_by(kind: str, rows: pd.DataFrame, folder: Path) -> Any:
    """The same rows in something else that holds rows."""
    if kind == "CSV":
        rows.to_csv(folder / "rows.csv", index=False)
        return folder / "rows.csv"
    if kind == "Arrow":
        return pytest.importorskip("pyarrow").Table.from_pandas(rows)
    return pl.from_pandas(rows).lazy()


@pytest.mark.parametrize("kind", ["CSV", "Arrow", "lazy polars"])
def test_whatever_holds_rows_is_taken_by_every_question(kind: str, tmp_path: Path) -> None:
    columns = COLUMNS | {"features": ["user", "item"], "numbers": []}
    data = FederatedData.from_frame(shop(), **columns)
    model = mf.build(data)
    result = fedrows.simulate(data, model, rounds=1, clients_per_round=5, device="cpu")
    one = replace(Trained.of(result, data), built_by="mf")
    save_bundle(one, tmp_path / "m.fedrows", onnx=False)
    served = fedrows.load(tmp_path / "m.fedrows")
    rows = shop()[["user", "item", "liked"]].iloc[:6]
    given = held_by(kind, rows, tmp_path)
    assert (served.predict(given).scores == served.predict(rows).scores).all()
    assert served.evaluate(given) == served.evaluate(rows)
    adapted, wanted = served.adapt(given), served.adapt(rows)
    assert (adapted.predict(given).scores == wanted.predict(rows).scores).all()
    if kind != "CSV":
        items = rows[["item"]].drop_duplicates()
        found = served.recommend(client="u3", k=3, candidates=held_by(kind, items, tmp_path))
        assert found.items == served.recommend(client="u3", k=3, candidates=items).items

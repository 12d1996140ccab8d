"""What may leave a run under privacy `full`: `release/` in its folder, and nothing else of it.

    model.safetensors   the shared tables and dense tensors
    heat.safetensors    the noisy heat behind the corrections
    privacy.json        ε of every kind, δ, and the mechanism

All three are noisy, and ε covers them together. No ε covers the rest of the folder: exact losses
and histograms, the clients of every cohort, and permanent answers. Only its owner may read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fedrows.errors import RunFolderError
from fedrows.files.whole import as_json, placing, write_whole
from fedrows.runs.folder import README, RELEASE, RELEASED, RunFolder
from fedrows.runs.run import TrainingRun
from fedrows.tables import whole

MODEL, HEAT, SPENT = RELEASED
ABOUT = f"""\
# The folder of a run under privacy full

| may be given away | what it is |
|---|---|
| `{RELEASE}/{MODEL}` | the model |
| `{RELEASE}/{HEAT}` | how many clients hold each row, with noise |
| `{RELEASE}/{SPENT}` | the ε of both together, and the mechanism |
| `report.html` | settings and ε, unless it was made with `fedrows report --private` |

Everything else is private, for no ε covers it: `metrics.jsonl` and `summary.json` (exact losses),
`data.json` (histograms), `checkpoint.safetensors` (how often each client was drawn), `status.json`
(bytes and times), `ledger.jsonl` and `answers/`; of a deployment also `rounds.jsonl` and the
registry, which say who took part.
`fedrows export` takes the model from `{RELEASE}/`.
"""


def write_release(folder: RunFolder, run: TrainingRun) -> None:
    """Writes what may leave, if the run is one whose model is private; else nothing."""
    part = None if run.private is None else run.private.releasable()
    progress = run.progress
    ended = progress.round == run.plan.rounds or bool(run.stopped)
    if part is None or (progress.table_folder is not None and not ended):
        return  # mapped tables are written whole, which takes its time
    path, params = folder.path / RELEASE, progress.whole()
    path.mkdir(exist_ok=True)
    model = {f"table/{name}": whole(params.tables[name]) for name in part.tables}
    model |= {f"dense/{name}": x for name, x in params.dense.items()}
    _save(path / MODEL, model, {"round": str(progress.round)})
    _save(path / HEAT, part.heat, {})
    write_whole(path / SPENT, as_json({"round": progress.round, **part.spent}, indent=1))
    write_whole(folder.path / README, ABOUT.encode())


def released_model(folder: RunFolder) -> tuple[dict[str, Tensor], int]:
    """The tensors of the model that may leave, by name, and its round."""
    from safetensors import SafetensorError, safe_open

    path = folder.path / RELEASE / MODEL
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, int((file.metadata() or {})["round"])
    except (OSError, SafetensorError, KeyError, ValueError):
        raise RunFolderError(
            f"{path} is missing or damaged: go on with the run to its end, which writes it again."
        ) from None


def _save(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    with placing(path) as part:
        save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, part, about)

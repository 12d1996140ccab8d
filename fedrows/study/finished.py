"""A finished run as one file, DIR/runs/<id>.json.gz: written in one step, with a hash of itself."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from fedrows.errors import FedrowsError
from fedrows.files.whole import Json, as_json, finite, write_whole
from fedrows.runs.folder import RUNS
from fedrows.study.setting import FORMAT, Setting


class StudyError(FedrowsError, RuntimeError):
    """Runs of a study that could not be made, or a study that was asked too early."""


def could_not(label: str, why: str, failed: int, of: int, where: str) -> StudyError:
    """The error of runs that failed, the first by its label. where: the others are kept there."""
    others = f", and {failed - 1} more like it," if failed > 1 else ""
    return StudyError(
        f"{label}{others} could not be run ({why.rstrip('.')}): {of - failed} other runs were made "
        f"and are kept in {where}."
    )


class DamagedError(FedrowsError, ValueError):
    """A run's file that is cut short, or whose content is not what was written."""


class AbsentError(DamagedError):
    """A run that has no file."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    id: str
    setting: Setting
    seed: int
    lines: list[Json]  # as in metrics.jsonl; None for NaN
    facts: Json  # what the data are like
    command: str  # the `fedrows run` that repeats it
    seconds: float  # in all: rounds and evaluations
    about: Json  # config, device, versions, as the file has them

    @property
    def summary(self) -> Json:
        """What is shown of a run beside its numbers."""
        return {
            "task": self.setting.task,
            "algorithm": self.setting.algorithm,
            "label": self.setting.label,
            "seed": self.seed,
            "command": self.command,
            "seconds": self.seconds,
            **self.about,
        }


def path_of(folder: Path, run: str) -> Path:
    """Where a run's file lies, or would."""
    return folder / RUNS / f"{run}.json.gz"


def keep(folder: Path, content: Json) -> None:
    """Writes a finished run."""
    content = finite({"format": FORMAT, **content})
    signed = {"sha256": _digest(content), **content}
    path = path_of(folder, content["id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(as_json(signed), mtime=0))


def read(path: Path, setting: Setting) -> FinishedRun:
    """A run from its file, for a setting that has its id; a DamagedError if it is not whole."""
    content = content_of(path)
    about = {key: content[key] for key in ("config", "device", "torch", "fedrows", "finished")}
    return FinishedRun(
        content["id"],
        setting,
        content["seed"],
        content["lines"],
        content["facts"],
        content["command"],
        content["seconds"],
        about,
    )


def content_of(path: Path) -> Json:
    """What a run's file says, once its hash is checked."""
    try:
        content: Json = json.loads(gzip.decompress(path.read_bytes()))
        stated = content.pop("sha256")
        right = stated == _digest(content) and f"{content['id']}.json.gz" == path.name
    except FileNotFoundError:
        raise AbsentError(f"There is no file {path}.") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as why:
        raise DamagedError(f"{path} is cut short or no run of fedrows.") from why
    if not right:
        raise DamagedError(f"{path} does not hold what was written to it.")
    return content


def digest_of(path: Path) -> str:
    """The hash of a run's file, to see whether it is the one that was used; "" without a file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _digest(content: Json) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

"""Makes experiments in a folder, and keeps what they came to.

    DIR/runs/<id>.json.gz       finished runs (see `fedrows.study`)
    DIR/artefacts/<name>.json   what an experiment came to, and what it was made of

An artefact is made anew when the code of this package, the files of its data, a run it used, the
way it was asked for or the version of fedrows has changed. Data files are told apart by their
SHA-256, so finding out that nothing has changed loads no data.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, FedrowsError
from fedrows.files.fetch import data_folder
from fedrows.files.whole import write_whole
from fedrows.paper.experiment import Experiment
from fedrows.report.artefact import Artefact, from_dict
from fedrows.study import Results, Say, Study, finished
from fedrows.study.finished import DamagedError, content_of, digest_of, path_of
from fedrows.study.scheduling import ReportProgress, executor_for, make, sentence, written
from fedrows.study.setting import PlannedRun, files_of
from fedrows.study.study_job import StudyJob, load
from fedrows.version import __version__

ARTEFACTS = "artefacts"
SOURCE = Path(__file__).parent  # of the experiments
TOLD = ("seed", "command", "seconds", "device", "torch", "fedrows", "finished", "config")
MADE, KEPT, MISSING, FAILED = "made", "as before", "data missing", "failed"


class _Later(BaseException):
    """An experiment has asked for runs that are to be made together with those of others."""


@dataclass
class Workplace:
    """A folder, and how the experiments in it are asked for."""

    folder: Path
    quick: bool = False
    search: bool = False
    seeds: Sequence[int] = ()  # instead of the experiments' own
    device: str = "auto"
    workers: int | None = None
    tell: Say = print
    progress: ReportProgress | None = None
    _executor: Executor | None = field(default=None, init=False, repr=False)
    _later: dict[str, PlannedRun] | None = field(default=None, init=False, repr=False)
    _done: dict[str, tuple[Artefact, str]] = field(default_factory=dict, init=False, repr=False)
    _used: set[str] = field(default_factory=set, init=False, repr=False)  # by the present one

    def load(self, task: str) -> FederatedData:
        """A task's data, loaded once."""
        return load(task)

    def results(self, study: Study) -> Results:
        """The runs of a study; only those that are missing are made."""
        study = Study(study.settings, self.seeds or study.seeds)
        if self._later is not None:
            wanted = study.planned()
            there = finished(self.folder, wanted, self.tell)
            if missing := {run: one for run, one in wanted.items() if run not in there}:
                self._later |= missing
                raise _Later
        study.executor = self._shared_executor()
        results = study.run(
            self.folder,
            workers=1,  # without an executor, in this process
            say=self.say,
            device=self.device,
            progress=self.progress,
        )
        self._used |= {run.id for run in results.runs}
        return results

    def say(self, text: str) -> None:
        """Shows a line, if the experiment is about to be made."""
        if self._later is None:
            self.tell(text)

    def ahead(self, experiments: Sequence[Experiment]) -> None:
        """Makes the runs of several experiments together: none waits for another's last run.

        Each is tried until it asks for runs that are not there. Those of all of them are made, and
        so on, until none asks for new ones. A run that fails is named when it is asked for again.
        """
        left = [one for one in experiments if one.has_runs and not self._lacking(one)]
        tried: set[str] = set()
        while True:
            self._later = {}
            try:
                for experiment in list(left):
                    with suppress(_Later):
                        self._done[experiment.name] = self.make(experiment)
                        left.remove(experiment)
                missing = {run: one for run, one in self._later.items() if run not in tried}
            finally:
                self._later = None
            if not missing:
                return
            tried |= missing.keys()
            jobs = [StudyJob.of(run, self.folder, self.device) for run in missing.values()]
            for _ in make(jobs, self._shared_executor(), written(self.folder, self.progress)):
                pass

    def make(self, experiment: Experiment) -> tuple[Artefact, str]:
        """What an experiment came to, and whether it was made, kept, lacks data or failed."""
        if experiment.name in self._done:
            return self._done[experiment.name]
        if lacking := self._lacking(experiment):
            return Artefact(experiment.name, experiment.title, missing=lacking), MISSING
        if (before := self.kept(experiment)) is not None:
            return before, KEPT
        self._used = set()
        try:
            artefact = experiment.make(self)
        except Exception as error:  # the others go on
            if not isinstance(error, FedrowsError):
                traceback.print_exc()
            why = f"Not made: {sentence(error)}"
            return Artefact(experiment.name, experiment.title, why), FAILED
        content = {
            "key": self._key(experiment),
            "runs": {run: digest_of(path_of(self.folder, run)) for run in sorted(self._used)},
            "artefact": asdict(artefact),
        }
        self._place(experiment).parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._place(experiment), json.dumps(content).encode())  # NaN stays NaN
        return artefact, MADE

    def kept(self, experiment: Experiment) -> Artefact | None:
        """The artefact that was made before, if nothing it was made of has changed."""
        try:
            content = json.loads(self._place(experiment).read_bytes())
            if content["key"] != self._key(experiment):
                return None
            for run, digest in content["runs"].items():
                if digest_of(path_of(self.folder, run)) != digest:
                    return None
            return from_dict(content["artefact"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def close(self) -> None:
        """Stops the workers."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def runs_of(self, artefacts: Sequence[Artefact]) -> dict[str, dict[str, Any]]:
        """What is told of the runs behind some artefacts, by id."""
        runs = {}
        for run in sorted({run for artefact in artefacts for run in _ids(artefact)}):
            try:
                content = content_of(path_of(self.folder, run))
            except DamagedError:
                continue
            setting = content["setting"]
            own = {key: setting[key] for key in ("task", "algorithm", "label")}
            runs[run] = own | {key: content[key] for key in TOLD}
        return runs

    def _shared_executor(self) -> Executor | None:
        """The workers, which keep their data from one study to the next; None: this process."""
        self._executor = self._executor or executor_for(self.workers, self.device)
        return self._executor

    def _lacking(self, experiment: Experiment) -> str:
        """How to get the data that an experiment lacks; nothing if it lacks none."""
        for name in experiment.tasks:
            source = catalogue.task(name).source
            folder = None if source is None else data_folder() / source.folder
            if folder is None or (folder.is_dir() and any(folder.iterdir())):
                continue
            try:
                self.load(name)  # the task knows how to say it
            except DataError as error:
                return str(error)
        return ""

    def _key(self, experiment: Experiment) -> str:
        made_of = {
            "experiment": [experiment.name, _code()],
            "asked": [self.quick, self.search, list(self.seeds)],
            "files": {task: files_of(task) for task in experiment.tasks},
            "fedrows": __version__,
        }
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    def _place(self, experiment: Experiment) -> Path:
        return self.folder / ARTEFACTS / f"{experiment.name}.json"


def _code() -> str:
    """A hash of the experiments' code and numbers; a change elsewhere counts by its version."""
    digest = hashlib.sha256()
    for path in sorted(path for ending in ("py", "json") for path in SOURCE.rglob(f"*.{ending}")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _ids(artefact: Artefact) -> set[str]:
    cells = {run for t in artefact.tables for row in t.rows for cell in row for run in cell.runs}
    panels = [panel for figure in artefact.figures for panel in figure.panels]
    return cells | {run for panel in panels for curve in panel.curves for run in curve.runs}

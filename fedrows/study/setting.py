"""A setting: one cell of a study but for its seed, and what its name on the disk is made of.

What is not given comes from the task's presets. A study decides device and threads by itself, so
that the same setting has the same id, and on one kind of device the same numbers, everywhere.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.catalogue import FROM
from fedrows.errors import PlanError
from fedrows.files.fetch import data_folder
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.runs.own_task import OwnData, OwnTask, algorithm_of, own_class
from fedrows.runs.settings import Settings, check_known, presets, taken_names

FORMAT = 1  # grows when the same setting comes to other numbers, or a run's file changes
DECIDED = ("seed", "device", "threads", "deterministic")  # of the plan, but by the study
WORK = {"logistic": 1, "lstm": 1000}  # for an example, roughly
OTHER_WORK = 200


@dataclass(frozen=True)
class Setting:
    """A task and an algorithm, with what differs from their presets."""

    task: str
    algorithm: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's own
    data: Mapping[str, Any] = field(default_factory=dict)  # the task's own
    label: str = ""  # tells settings of one algorithm apart; no part of the id
    model: Mapping[str, Any] = field(default_factory=dict)  # the options of the task's model
    # What only this process knows, by the names above.
    own_task: OwnTask | None = field(default=None, compare=False, repr=False)
    own_algorithm: type[Algorithm] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        task: str | OwnTask,
        algorithm: str | type[Algorithm] | Algorithm,
        plan: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        label: str = "",
        model: Mapping[str, Any] | None = None,
    ) -> Setting:
        """A setting of data, a module and algorithms that may be your own, or given by name.

        What options gives comes before the options of an instance.
        """
        if not isinstance(task, str | OwnTask):
            raise PlanError(
                f"The task is a {type(task).__name__}, but must be the name of one, or your own "
                "data and module: OwnTask(data, module)."
            )
        own = task if isinstance(task, OwnTask) else None
        if own is not None and data:
            raise PlanError(
                f"The data have the option {next(iter(data))}, but are your own: give it to what "
                "makes them, such as FederatedData.from_frame."
            )
        name, given, of = algorithm, dict[str, Any](), None
        if not isinstance(name, str):
            made = algorithm_of(name)
            name, of = made.name, own_class(made)
            given = asdict(made) if isinstance(algorithm, Algorithm) else given
        where = task.name if isinstance(task, OwnTask) else task
        chosen = {**given, **(options or {})}
        parts = dict(plan or {}), chosen, dict(data or {}), label, dict(model or {})
        return cls(where, name, *parts, own, of)

    def __post_init__(self) -> None:
        # What this process has loaded by reference, another one must be able to load as well.
        for kind in ("task", "algorithm"):
            name = getattr(self, kind)
            object.__setattr__(self, kind, catalogue.reference(kind, name) or name)

    def __hash__(self) -> int:
        return hash((self.task, self.algorithm, self.label))

    @property
    def name(self) -> str:
        """What it is called in a table."""
        return f"{catalogue.short(self.algorithm)} {self.label}".rstrip()

    @property
    def own(self) -> bool:
        """Whether other processes cannot make it."""
        return self.own_task is not None or self.own_algorithm is not None

    @contextmanager
    def known(self) -> Iterator[None]:
        """Makes what is given in Python known by its name, for a while."""
        with ExitStack() as stack:
            if self.own_task is not None:
                stack.enter_context(self.own_task.known())
            if self.own_algorithm is not None:
                own = catalogue.known_here("algorithm", self.algorithm, self.own_algorithm)
                stack.enter_context(own)
            yield

    def planned(self, seed: int) -> PlannedRun:
        """The setting with its presets and a seed; an error if it makes no sense."""
        task, of = catalogue.task(self.task), catalogue.algorithm(self.algorithm)
        for chosen in DECIDED:
            if chosen in self.plan:
                raise PlanError(
                    f"The plan of {self.name} on {self.task} sets {chosen}, which a study decides: "
                    "leave it out, and give seeds to the study and a device to its run."
                )
        check_known(f"option of the plan of {self.name}", self.plan, Plan)
        check_known(f"option of {self.algorithm}", self.options, of)
        check_known(f"option of task {self.task}", self.data, task.options)
        of_model = catalogue.model_options(task.model)
        check_known(f"option of model {catalogue.short(task.model)}", self.model, of_model)
        plan, own = presets(task, self.algorithm)
        plan = {name: value for name, value in plan.items() if name not in DECIDED}
        settings = Settings(
            task,
            task.options(**self.data),
            of(**{**own, **self.options}),
            Plan(**{**plan, **self.plan, "seed": seed}),
            model=of_model(**self.model),
        )
        return PlannedRun(self, settings)

    def as_dict(self) -> dict[str, Any]:
        """The setting in plain dicts, which travel anywhere."""
        parts = {"plan": dict(self.plan), "options": dict(self.options), "data": dict(self.data)}
        parts |= {"model": dict(self.model)} if self.model else {}
        return {"task": self.task, "algorithm": self.algorithm, **parts, "label": self.label}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a setting, with its presets and its seed."""

    setting: Setting
    settings: Settings

    @property
    def label(self) -> str:
        """What it is called while it runs."""
        return f"{self.setting.name} on {self.settings.task.name}, seed {self.settings.plan.seed}"

    @cached_property
    def id(self) -> str:
        """A hash of everything that decides its numbers.

        The device is not in it: runs made on a GPU are carried elsewhere, and say where they ran.
        """
        settings = self.settings
        files = files_of(self.setting.task, settings.options)
        decides = {"format": FORMAT, "files": files, **self.config()}
        builder = catalogue.builder(settings.task.model)
        plugins = (type(settings.algorithm), settings.task.load, builder)
        if code := [file for plugin in plugins if (file := catalogue.code_of(plugin))]:
            decides["code"] = code  # a plug-in that was changed comes to other numbers
        text = json.dumps(decides, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def config(self) -> dict[str, Any]:
        """Task, algorithm and plan with all their options, as a run's config.json has them."""
        config = self.settings.config()
        del config["torch"]
        for decided in DECIDED[1:]:
            del config["plan"][decided]
        if not config["plan"]["go_on"]:  # what a run did before there was this option
            del config["plan"]["go_on"]
        for plugin in ("task", "algorithm"):  # where its file lies decides no numbers
            config[plugin].pop(FROM, None)
        return config

    def command(self, device: str, chunk: int | None) -> str:
        """The `fedrows run` that repeats it; the study in Python if no command can."""
        if isinstance(self.settings.options, OwnData) or not self._has_command():
            return self._in_python()
        setting, taken = self.setting, taken_names(self.settings.algorithm.name)
        flags = {**setting.plan, **setting.options}
        flags |= {f"data_{k}" if k in taken else k: v for k, v in setting.data.items()}
        taken |= {item.name for item in options(self.settings.task.options)}
        flags |= {f"model_{k}" if k in taken else k: v for k, v in setting.model.items()}
        flags |= {"seed": self.settings.plan.seed, "device": device}
        if device == "cpu":
            flags["threads"] = 1
        if chunk is not None:
            flags["chunk"] = chunk
        words = ["fedrows", "run", setting.task, "--algorithm", setting.algorithm]
        for name, value in flags.items():
            words += _flag(name.replace("_", "-"), value)
        return shlex.join(words)

    def _has_command(self) -> bool:
        """Whether the command line finds the algorithm."""
        name = catalogue.short(self.setting.algorithm)
        known = name in catalogue.built_in("algorithm") or catalogue.installed("algorithm", name)
        return known or ":" in self.setting.algorithm

    def _in_python(self) -> str:
        setting, plan = self.setting, self.settings.plan
        own = isinstance(self.settings.options, OwnData)
        words = ["own" if own else repr(setting.task), repr(self.settings.algorithm)]
        words.append(f"plan={dict(setting.plan)!r}")
        words += [f"data={dict(setting.data)!r}"] if setting.data else []
        words += [f"model={dict(setting.model)!r}"] if setting.model else []
        return f"Study([Setting.of({', '.join(words)})], seeds=[{plan.seed}])"


def work_of(settings: Settings) -> float:
    """How long a run takes, roughly and in no unit."""
    return work_in(settings.plan) * WORK.get(settings.task.model, OTHER_WORK)


def work_in(plan: Plan) -> float:
    """The examples that all clients train on."""
    return float(plan.rounds * plan.clients_per_round * plan.local_steps * plan.batch_size)


def files_of(task: str, options: Any = None) -> str:
    """A hash of a task's data files, by name and content; nothing if it names none."""
    chosen = catalogue.task(task)
    if chosen.source is None and chosen.files is None:
        return ""
    digest = hashlib.sha256()
    for path in data_files(task, options):
        about = path.stat()
        digest.update(f"{path.name} {_sha(path, about.st_size, about.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


def data_files(task: str, options: Any = None) -> list[Path]:
    """The files in a task's data folder, but for hidden ones, and those that the task names.

    options: the task's own; its defaults if none are given.
    """
    chosen = catalogue.task(task)
    source = chosen.source
    folder = None if source is None else data_folder() / source.folder
    paths = sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    paths = [path for path in paths if not path.name.startswith(".")]
    if chosen.files is not None:
        paths += chosen.files(chosen.options() if options is None else options)
    return [path for path in paths if path.is_file()]


@cache
def _sha(path: Path, size: int, changed: int) -> str:
    """A file's SHA-256, worked out again when its size or its time of change is another."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", "none" if value is None else str(value)]

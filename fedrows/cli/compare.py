"""`fedrows compare`: several algorithms on one task, over several seeds, side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrows import catalogue
from fedrows.cli.carry_out import carry_out, check_machine, conclude, go_back, load, run_of
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.outcome import close
from fedrows.cli.parse import algorithms_of, out_of, parse, parser_of, watched
from fedrows.cli.settings import (
    add_privacy,
    choose,
    extended,
    refuse_change,
    shared_plan,
)
from fedrows.cli.show import say
from fedrows.cli.stop import Stop
from fedrows.cli.together import one_voice
from fedrows.data.federation import FederatedData
from fedrows.errors import RunFolderError, UnknownNameError
from fedrows.files.whole import reason
from fedrows.measure.summary import METRICS, Target
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.driver import begin
from fedrows.runs.folder import CHECKPOINT, CONFIG, DATA, RUNS, RunFolder, check_free
from fedrows.runs.settings import Settings, from_config, resolve
from fedrows.simulation import threads
from fedrows.simulator import process_group
from fedrows.watch import Observers, RunInfo

SEEDS = "0,1,2"


@dataclass
class Comparison:
    """A comparison in its folder."""

    folder: RunFolder
    settings: dict[str, Settings]  # algorithm → its run, whatever the seed
    seeds: list[int]
    target: Target

    @property
    def plan(self) -> Plan:
        """Some run's plan: rounds, device and threads are the same in all."""
        return next(iter(self.settings.values())).plan

    def runs(self) -> Iterator[tuple[str, Path, Settings]]:
        """Label, folder and settings of every run, a seed at a time."""
        for seed in self.seeds:
            for name, its in self.settings.items():
                path = self.folder.path / RUNS / f"{name}-seed{seed}"
                yield f"{name} seed {seed}", path, replace(its, plan=replace(its.plan, seed=seed))


def main(words: Sequence[str]) -> int:
    """Compares, or goes on; gives the exit code."""
    with one_voice():
        if process_group.several():
            raise UsageError(
                "compare has one process: start it without torchrun, or use `fedrows run` for each "
                "algorithm."
            )
    typed = parse(words, _parser, without=["seed"])
    if typed is None:
        return 0
    with watched(typed) as observer:
        return _main(typed, observer)


def _main(typed: dict[str, Any], observer: Observers) -> int:
    resume, out, overwrite = typed.pop("resume"), typed.pop("out"), typed.pop("overwrite")
    seconds, command, task = (
        typed.pop("checkpoint_seconds"),
        typed.pop("command"),
        typed.pop("task"),
    )
    algorithms = algorithms_of(typed)
    typed.pop("algorithms")
    seeds = [_whole("--seeds", x, 0) for x in (typed.pop("seeds") or "").split(",") if x.strip()]
    target = _target(typed)
    if resume is not None:
        if overwrite:
            raise UsageError("--overwrite and --resume cannot be used together: choose one.")
        path = out_of(resume, out, lambda: _default(task))
        return _resume(path, task, algorithms, sorted(set(seeds)), target, typed, seconds, observer)
    if task is None:
        raise UsageError(f"Name a task to compare on: {', '.join(catalogue.names('task'))}.")
    path = Path(out) if out else _default(task)
    algorithms = algorithms or catalogue.built_in("algorithm")
    seeds = sorted(set(seeds)) or [int(seed) for seed in SEEDS.split(",")]
    found = catalogue.task(task)
    settings = {k: v.resolved() for k, v in choose(found, algorithms, typed).items()}
    plan = resolve(shared_plan(found, typed))
    target = target or Target()
    if target.rounds is None:  # leave room for those who need longer than CentralSGD
        target = replace(target, rounds=max(1, plan.rounds * 2 // 3))
    check_free(path, overwrite=overwrite)
    with threads(plan.threads):
        its = next(iter(settings.values()))
        data = load(found, its.options, [s.plan for s in settings.values()])
        config = _config(settings, plan, seeds, target) | {"command": command}
        folder = RunFolder.create(path, "compare", config, overwrite=overwrite)
        with folder.locked():
            folder.write_json(DATA, its.facts(data))
            return _go(Comparison(folder, settings, seeds, target), data, seconds, observer)


def _resume(
    path: Path,
    task: str | None,
    algorithms: list[str],
    seeds: list[int],
    target: Target | None,
    typed: dict[str, Any],
    seconds: float,
    observer: Observers,
) -> int:
    folder = RunFolder.open(path, "compare")
    settings, config = from_config(folder.config, path), folder.config
    its = next(iter(settings.values()))
    if task is not None and task != its.task.name:
        raise refuse_change("TASK", task, its.task.name, path)
    if algorithms and sorted(algorithms) != sorted(settings):
        raise refuse_change("--algorithms", ",".join(algorithms), ",".join(settings), path)
    stored = config["seeds"]
    if missing := sorted(set(stored) - set(seeds or stored)):
        raise refuse_change("--seeds without", missing[0], _listed(stored), path)
    before = its.plan.rounds
    settings = extended(settings, typed, path)
    comparison = Comparison(
        folder, settings, seeds or stored, target or Target(**config.get("target", {}))
    )
    if comparison.plan.rounds < before:
        raise refuse_change("--rounds", comparison.plan.rounds, before, path)
    check_machine(folder, comparison.plan)
    with threads(comparison.plan.threads), folder.locked():
        data = load(its.task, its.options, [s.plan for s in settings.values()])
        config["plan"]["rounds"] = comparison.plan.rounds
        config |= {"seeds": comparison.seeds, "target": asdict(comparison.target)}
        folder.write_json(CONFIG, config)
        folder.write_json(DATA, its.facts(data))
        return _go(comparison, data, seconds, observer)


def _go(comparison: Comparison, data: FederatedData, seconds: float, observer: Observers) -> int:
    """Makes the runs that are missing, one after another."""
    folder, plan = comparison.folder, comparison.plan
    again = f"fedrows compare --resume {shlex.quote(str(folder.path))}"
    runs = list(comparison.runs())
    say(
        f"{', '.join(comparison.settings)} on {data.name}, seeds {_listed(comparison.seeds)}, "
        f"on {plan.device}: {len(runs)} runs of {plan.rounds} rounds"
    )
    done, stopped = True, ""
    with Stop() as stop:
        for number, (label, path, settings) in enumerate(runs, start=1):
            if not _finished(path, settings.plan.rounds):
                title = f"{number}/{len(runs)} {label}"
                done = _run(path, settings, data, observer, stop, title, again, seconds)
                stopped = "" if done else label
            if stop.asked and (number < len(runs) or not done):
                done, stopped = False, stopped or label
                break
    try:
        folder.keep_lines(_lines(runs))
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be written ({reason(error)}): make room, then go on with "
            f"`{again}`."
        ) from error
    code = close(folder, done, f"in {stopped}", again, comparison.target)
    if done:
        name, rounds = folder.path.resolve().name, plan.rounds
        observer.begin(RunInfo(name, folder.config, rounds, rounds, folder.path))
        conclude(observer, folder, done)
    return code


def _run(
    path: Path,
    settings: Settings,
    data: FederatedData,
    observer: Observers,
    stop: Stop,
    title: str,
    again: str,
    seconds: float,
) -> bool:
    """Makes one run, or what is left of it; False if it was stopped."""
    if (path / CHECKPOINT).exists():
        folder = RunFolder.open(path, "run")
        [stored] = from_config(folder.config, path).values()
        same = replace(stored, plan=replace(stored.plan, rounds=settings.plan.rounds))
        if same != settings:
            raise RunFolderError(
                f"{path} holds another run than its comparison says: delete it, then go on with "
                f"`{again}`."
            )
        simulation = go_back(folder, settings, data)
    else:
        simulation = settings.simulation(data, path)
        simulation.prepare()
        folder = RunFolder.create(path, "run", settings.config(), overwrite=True)
        begin(folder, simulation, simulation.evaluator.facts())
    name = f"{path.resolve().parents[1].name}/{path.name}"  # the comparison's folder, and its own
    with folder.locked():
        observer.begin(run_of(name, folder, simulation))
        done = carry_out(simulation, folder, observer, stop, title, again, seconds)
    observer.end(done)
    return done


def _finished(path: Path, rounds: int) -> bool:
    """Whether a run has nothing left to do."""
    if not (path / CHECKPOINT).exists():
        return False
    lines = RunFolder.open(path, "run").lines()
    at = checkpoint.standing(path / CHECKPOINT).round
    return at == rounds and bool(lines) and lines[-1]["round"] == rounds


def _lines(runs: list[tuple[str, Path, Settings]]) -> Iterator[dict[str, Any]]:
    """The metrics of all runs."""
    for _, path, _ in runs:
        if path.is_dir():
            yield from RunFolder.open(path, "run").lines()


def _config(
    settings: dict[str, Settings], plan: Plan, seeds: list[int], target: Target
) -> dict[str, Any]:
    """The comparison as config.json has it."""
    shared = asdict(plan)
    entries = []
    for its in settings.values():
        own = {key: value for key, value in asdict(its.plan).items() if value != shared[key]}
        entries.append({**its.config()["algorithm"], **own})
    del shared["seed"]
    return {
        "task": next(iter(settings.values())).config()["task"],
        "algorithms": entries,
        "plan": shared,
        "seeds": seeds,
        "target": asdict(target),
        **({"privacy": its.privacy.config()} if its.privacy.private else {}),
        "torch": torch.__version__,
    }


def _target(typed: dict[str, Any]) -> Target | None:
    """The target that was asked for, if any was."""
    metric, rounds = typed.pop("target_metric"), typed.pop("target_rounds")
    value = typed.pop("target_value")
    if metric is None and rounds is None and value is None:
        return None
    if metric is not None and metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    try:
        number = None if value is None else float(value)
    except ValueError:
        raise UsageError(f"--target-value is {value!r}, but must be a number.") from None
    within = None if rounds is None else _whole("--target-rounds", rounds, 1)
    return Target(metric or "train_loss", number, within)


def _whole(flag: str, typed: str, least: int) -> int:
    try:
        if int(typed) >= least:
            return int(typed)
    except ValueError:
        pass
    raise UsageError(f"{flag} has {typed!r}, but wants whole numbers of at least {least}.")


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _default(task: str | None) -> Path:
    if task is None:
        raise UsageError("Name the folder to go on with, as in: --resume runs/NAME.")
    return Path("runs") / f"{task}-compare"


def _parser() -> Parser:
    parser = parser_of(
        "compare",
        "Trains several algorithms on a task over several seeds, and shows them side by side.",
        "The folder to write (default: runs/TASK-compare).",
        "Do what is missing of an interrupted comparison; more --seeds or --rounds extend it.",
    )
    known = ", ".join(catalogue.names("algorithm"))
    add = parser.add_argument
    add("--algorithms", metavar="A,B", help=f"Which algorithms, of {known} (default: all of ours).")
    add("--seeds", metavar="N,N", help=f"A run for each of these seeds (default: {SEEDS}).")
    add(
        "--target-rounds",
        metavar="N",
        help="The target is CentralSGD's best within so many rounds (default: two thirds of them).",
    )
    add(
        "--target-metric",
        metavar="NAME",
        help=f"One of {', '.join(METRICS)} (default: train_loss).",
    )
    add_privacy(parser)
    add("--target-value", metavar="X", help="A target of your own instead of CentralSGD's best.")
    return parser

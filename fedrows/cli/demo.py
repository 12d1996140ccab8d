"""`fedrows deploy demo`: a whole federation on this machine, next to a simulation of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.flags import Parser, UsageError, add_options, values_for, whole_number
from fedrows.cli.parse import TrainingCommand, parse, parser_of
from fedrows.cli.settings import choose
from fedrows.cli.show import say
from fedrows.files import fetch
from fedrows.flower.demo import demo
from fedrows.flower.wire.contract import BOUNDS, DeploymentOptions
from fedrows.live.start import beside, check_installed
from fedrows.runs.folder import check_free
from fedrows.runs.settings import Settings
from fedrows.watch import Observers, Watching

# What makes rounds with devices worth looking at: small steps, so that one sees them come.
DEVICE_PLAN = {
    "movielens-mf": {"rounds": "60", "lr": "4", "lr_schedule": "constant", "start": "zero"},
    "": {"rounds": "60"},
}
DEVICE_TIMEOUT = 30.0  # seconds: a tab that is closed holds up a round for so long


def main(words: Sequence[str]) -> int:
    """Runs the demo; 0 if the deployed model is the simulated one."""
    typed = parse(words, _parser)
    command = TrainingCommand.taken(typed, Observers())
    count, overwrite = typed.pop("nodes"), command.overwrite
    devices = _devices(typed.pop("devices"), count)
    algorithm = (command.algorithms or [catalogue.DEFAULT])[0]
    task = command.task or (_device_task() if devices else "synthetic")
    terms, typed = values_for(DeploymentOptions, typed)
    watching, typed = values_for(Watching, typed)
    terms |= watching
    nodes = whole_number("--nodes", count or "4")
    for kind, name in (("task", task), ("algorithm", algorithm)):
        if (reference := catalogue.reference(kind, name)) is not None:
            raise UsageError(
                f"The {kind} {reference} is a file or a module, but nodes know what is installed: "
                "install it as a plug-in."
            )
    if devices:
        for option_name, value in DEVICE_PLAN.get(task, DEVICE_PLAN[""]).items():
            typed.setdefault(option_name, value)
        terms.setdefault("timeout", DEVICE_TIMEOUT)
    settings = _settings(task, algorithm, typed)
    terms |= {name: "" for name in BOUNDS if getattr(settings.plan, name) is None}
    own = settings.algorithm
    terms |= {name: "" for name in own.deployed if getattr(own, name) is None}
    path = Path(command.out or f"runs/deploy-{task}-{algorithm}").absolute()
    check_free(path, overwrite=overwrite)
    data = settings.task.load(settings.options)
    if devices:
        from fedrows.flower.device_demo import device_demo

        with beside([path], command.live.port) as page:
            return device_demo(settings, data, devices, path, terms, overwrite, say, page)
    if data.clients < nodes:
        raise UsageError(f"--nodes is {nodes}, but {task} has {data.clients} clients only.")
    with command.live.following(path):
        return demo(settings, data, nodes, path, terms, overwrite, say)


def _devices(typed: str | None, nodes: str | None) -> int:
    """How many devices were asked for, 0 if none were; refuses what cannot be shown."""
    if typed is None:
        return 0
    if nodes is not None:
        raise UsageError(
            "--nodes is for a demo without devices: leave it out, or leave out --devices."
        )
    from fedrows.flower.device_demo import check_built

    check_installed("--devices")
    check_built()
    return whole_number("--devices", typed)


def _device_task() -> str:
    """Films if they are on this machine, else examples that are made up."""
    films = catalogue.task("movielens-mf")
    assert films.source is not None
    return films.name if fetch.path(films.source).is_file() else "synthetic"


def _settings(task: str, algorithm: str, typed: dict[str, Any]) -> Settings:
    """The run's settings, on the CPU, with the bounds on single clients that deployments have."""
    for option_name, value in {**BOUNDS, **catalogue.algorithm(algorithm).deployed}.items():
        typed.setdefault(option_name, str(value))
    typed.setdefault("rounds", "5")
    typed.setdefault("evaluate_every", "1")
    settings = choose(catalogue.task(task), [algorithm], typed)[algorithm]
    return replace(settings, plan=replace(settings.plan, device="cpu"))


def _parser() -> Parser:
    parser = parser_of(
        "deploy demo",
        "Starts a federation of nodes on this machine, trains over it, and compares the result "
        "with a simulation.",
        "The folder to write (default: runs/deploy-TASK-ALGORITHM).",
        saves=False,
    )
    add_options(parser, "watching", [Watching], {})
    add = parser.add_argument
    add("--nodes", metavar="N", help="How many nodes (default: 4).")
    add(
        "--devices",
        metavar="N",
        help="Have N devices in a browser take part, through a gateway; prints the page's address.",
    )
    add("--algorithm", metavar="NAME", help=f"The algorithm (default: {catalogue.DEFAULT}).")
    add_options(parser, "deployment", [DeploymentOptions], {})
    return parser

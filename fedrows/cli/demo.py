"""`fedrows deploy demo`: a whole federation on this machine, next to a simulation of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.flags import Parser, UsageError, add_options, values_for
from fedrows.cli.live import LivePage
from fedrows.cli.parse import algorithms_of, parse, parser_of
from fedrows.cli.settings import choose
from fedrows.cli.show import say
from fedrows.flower.demo import demo
from fedrows.flower.wire.contract import BOUNDS, DeploymentOptions
from fedrows.runs.folder import check_free
from fedrows.runs.settings import Settings
from fedrows.watch import Watching


def main(words: Sequence[str]) -> int:
    """Runs the demo; 0 if the deployed model is the simulated one."""
    typed = parse(words, _parser)
    if typed is None:
        return 0
    for unused in ("resume", "checkpoint_seconds", "command"):
        typed.pop(unused, None)
    live = LivePage.typed(typed)
    out, overwrite, count = typed.pop("out"), typed.pop("overwrite"), typed.pop("nodes")
    named = algorithms_of(typed) or [catalogue.DEFAULT]
    task = typed.pop("task") or "synthetic"
    typed.pop("algorithm")
    terms, typed = values_for(DeploymentOptions, typed)
    watching, typed = values_for(Watching, typed)
    terms |= watching
    if not count.isdecimal() or int(count) < 1:
        raise UsageError(f"--nodes is {count}, but must be a whole number from 1 on.")
    nodes = int(count)
    for kind, name in (("task", task), ("algorithm", named[0])):
        if (reference := catalogue.reference(kind, name)) is not None:
            raise UsageError(
                f"The {kind} {reference} is a file or a module, but nodes know what is installed: "
                "install it as a plug-in."
            )
    settings = _settings(task, named[0], typed)
    terms |= {name: "" for name in BOUNDS if getattr(settings.plan, name) is None}
    own = settings.algorithm
    terms |= {name: "" for name in own.deployed if getattr(own, name) is None}
    path = Path(out or f"runs/deploy-{task}-{named[0]}").absolute()
    check_free(path, overwrite=overwrite)
    data = settings.task.load(settings.options)
    if data.clients < nodes:
        raise UsageError(f"--nodes is {nodes}, but {task} has {data.clients} clients only.")
    with live.following(path):
        return demo(settings, data, nodes, path, terms, overwrite, say)


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
        "Not used here.",
    )
    parser.add_argument("--nodes", metavar="N", default="4", help="How many nodes (default: 4).")
    parser.add_argument(
        "--algorithm", metavar="NAME", help=f"The algorithm (default: {catalogue.DEFAULT})."
    )
    add_options(parser, "deployment", [DeploymentOptions], {})
    return parser

"""`fedrows deploy admit, revoke, run, stop` and `export`: what operators ask of a SuperLink."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrows.cli.deploy_status import find_node
from fedrows.cli.deploy_typed import add_connection, connect, needed
from fedrows.cli.export import main as write_export
from fedrows.cli.flags import Parser, UsageError, whole_number, whole_number_or_none
from fedrows.cli.live import LivePage, add_live
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError
from fedrows.flower.launch.certificates import check_file
from fedrows.flower.launch.control import ControlClient, RunState, Value, split_address
from fedrows.flower.launch.control_token import is_here
from fedrows.flower.launch.flwr_calls import start_request
from fedrows.flower.launch.following import RoundLines
from fedrows.flower.launch.resubmit import submit_until_done


def admit(words: Sequence[str]) -> int:
    parser = Parser("deploy admit", "Admits a node to a SuperLink, by its public key.")
    parser.add_argument("key", metavar="KEY.pub", nargs="?", help="The node's public key.")
    add_connection(parser)
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its key).")
    typed = parser.parse(words)
    key = Path(needed(typed, "key", "Name the node's public key, a file that ends in .pub"))
    check_file(key, "Name the public key that `fedrows deploy keys` has written")
    control = connect(typed)
    node = control.admit(key, typed["name"] or key.stem)
    say(f"Admitted {key} as node {node}.")
    return 0


def run(words: Sequence[str]) -> int:
    parser = Parser("deploy run", "Submits a Flower project, and waits until its run has finished.")
    add = parser.add_argument
    add("project", metavar="PROJECT", nargs="?", help="The project's folder.")
    add_connection(parser)
    add(
        "--config",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="Settings to override.",
    )
    add(
        "--retries",
        metavar="N",
        default="10",
        help="How often to submit again when a server died (10).",
    )
    add_live(parser)
    add("--rounds", metavar="N", help="Rounds in all; more than before make a finished run longer.")
    add(
        "--metrics-port",
        metavar="N",
        help="Serve Prometheus on this port of the SuperLink's machine; 0 takes a free one.",
    )
    add(
        "--metrics-host",
        metavar="HOST",
        help="The address that --metrics-port listens on (127.0.0.1).",
    )
    typed = parser.parse(words)
    project = Path(needed(typed, "project", "Name the folder of a Flower project"))
    rounds = (
        [f"rounds={whole_number('--rounds', typed['rounds'], 1, 10**9)}"] if typed["rounds"] else []
    )
    config, known = _config(project, [*typed["config"], *rounds])
    live, out = LivePage.typed(typed), {**known, **config}.get("out")
    if live.wanted and not out:
        raise UsageError(
            "--live needs the run's folder: give the project's configuration an `out`."
        )
    watching = _watching(typed)
    retries = whole_number("--retries", typed["retries"], 0, 10**6)
    control = connect(typed)
    control.watch_next(watching)
    say("The log of its rounds is logs/serverapp.log in the SuperLink's state folder.")
    follow = RoundLines(control, say)
    with live.following(Path(str(out)).expanduser()):
        code = submit_until_done(control, project, config, retries, say, follow=follow)
    if code == 0 and out:
        say(f"Its folder on the server is {out}, with the report in report.html.")
    return code


def app_hash(words: Sequence[str]) -> int:
    parser = Parser("deploy hash", "Shows the hash of a Flower project, for `deploy node --apps`.")
    parser.add_argument("project", metavar="PROJECT", nargs="?", help="The project's folder.")
    typed = parser.parse(words)
    project = Path(needed(typed, "project", "Name the folder of a Flower project"))
    try:
        say(str(start_request(project.resolve(), {}).fab.hash_str))
    except ValueError as error:
        raise FedrowsError(f"{project} is not a Flower project that can run: {error}") from None
    return 0


def revoke(words: Sequence[str]) -> int:
    parser = Parser(
        "deploy revoke",
        "Has a SuperLink refuse a node's key, at once and after a restart. Runs go on without it.",
    )
    parser.add_argument("node", metavar="NODE", nargs="?", help="Its name or its id.")
    add_connection(parser)
    typed = parser.parse(words)
    text = needed(typed, "node", "Name the node, or its id: `fedrows deploy nodes` shows both")
    control = connect(typed)
    node = find_node(control, text)
    control.revoke(node.node)
    called = f" ({node.name})" if node.name else ""
    say(f"The key of node {node.node}{called} is refused from now on; runs go on without the node.")
    return 0


def stop(words: Sequence[str]) -> int:
    parser = Parser("deploy stop", "Ends a run after its present round, saved and with its report.")
    parser.add_argument("run", metavar="RUN", nargs="?", help="Its id (the only one that goes on).")
    add_connection(parser)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        default="60",
        help="How long the present round may take; then the run is broken off (60).",
    )
    typed = parser.parse(words)
    named = whole_number_or_none("RUN", typed["run"], 1, 2**64)
    wait = whole_number("--wait", typed["wait"], 0, 86400)
    control = connect(typed)
    state = _going(control) if named is None else control.look(named)
    if state.over:
        say(f"Run {state.run} has ended already: {state.status}.")
        return 0
    if wait and _ends_in_order(control, state.run, wait):
        say(f"Run {state.run} is stopped after a whole round; its folder is saved.")
        return 0
    control.stop(state.run)
    say(f"Run {state.run} is broken off; its folder has every round that was finished.")
    return 0


def _going(control: ControlClient) -> RunState:
    going = [run for run in control.runs() if not run.over]
    if not going:
        raise FedrowsError("No run is going on.")
    if len(going) > 1:
        which = ", ".join(str(run.run) for run in going)
        raise UsageError(f"Name the run: those that go on are {which}.")
    return going[0]


def _ends_in_order(control: ControlClient, run: int, seconds: float) -> bool:
    """Asks a run to end after its present round; False if it does not within so many seconds."""
    control.ask_to_stop(run)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if control.look(run).over:
            return True
        if any(own.get("status") == "stopped" for own in control.progress(run)):
            return True
        time.sleep(0.25)
    return False


def export(words: Sequence[str]) -> int:
    parser = Parser(
        "deploy export",
        "Writes the model of a deployed run as a bundle. The run may still be going on.",
    )
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="Its id (the newest).")
    add_connection(parser)
    add("--to", metavar="FILE", help="The file to write, such as model.fedrows.")
    add("--task", metavar="REFERENCE", help="Its task, such as task.py:TASK.")
    add("--overwrite", action="store_true", help="Replace a file that exists.")
    typed = parser.parse(words)
    to = needed(typed, "to", "Name the file to write with --to, such as model.fedrows")
    named = whole_number_or_none("RUN", typed["run"], 1, 2**64)
    control = connect(typed)
    known = [run for run in control.progress(named) if run.get("folder")]
    if not known:
        which = "No run" if named is None else f"Run {named}"
        begun = "has begun" if named is None else "has not begun"
        raise FedrowsError(f"{which} at {control.address} {begun}, so there is no model yet.")
    folder = Path(known[0]["folder"])
    # Another machine may not say which folder of this one is read: it may name code to import.
    if not is_here(split_address(control.address)[0]) or not folder.is_dir():
        raise FedrowsError(
            f"Run {known[0]['run']} is in {folder} on the SuperLink's machine, which is not here: "
            "export it there, or copy the folder here and use `fedrows export`."
        )
    more = ["--task", typed["task"]] if typed["task"] else []
    more += ["--overwrite"] if typed["overwrite"] else []
    return write_export([str(folder), "--to", to, *more])


def _watching(typed: dict[str, Any]) -> dict[str, Value]:
    """How the run is to be watched, on the SuperLink's machine."""
    if typed["metrics_port"] is None:
        if typed["metrics_host"]:
            raise UsageError("--metrics-host needs --metrics-port: name the port too.")
        return {}
    port = whole_number("--metrics-port", typed["metrics_port"], 0, 65535)
    host = {"metrics_host": typed["metrics_host"]} if typed["metrics_host"] else {}
    return {"metrics_port": port, **host}


def _config(project: Path, pairs: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was typed as KEY=VALUE, where a value is TOML, or else text; and the project's own."""
    try:
        project_file = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
        known = project_file["tool"]["flwr"]["app"].get("config", {})
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        raise UsageError(
            f"{project} is not a Flower project, for its pyproject.toml is missing or has no "
            "[tool.flwr.app]: name its folder."
        ) from None
    config: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--config is {pair!r}, but must be KEY=VALUE.")
        if key not in known:
            missing = UnknownNameError("setting", key, known)
            raise UsageError(
                f"{missing} Or add it to [tool.flwr.app.config] in {project / 'pyproject.toml'}."
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        config[key] = value if isinstance(value, str | int | float | bool) else text
    return config, known

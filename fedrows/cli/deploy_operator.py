"""`fedrows deploy admit, expel, run, status` and `stop`: what operators ask of a SuperLink."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrows.cli.deploy_typed import authority, needed, number, trust
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.live import LivePage, add_live
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError

if TYPE_CHECKING:
    from fedrows.flower.launch.control import ControlClient


def admit(words: Sequence[str]) -> int:
    parser = Parser("deploy admit", "Admits a node to a SuperLink, by its public key.")
    parser.add_argument("key", metavar="KEY.pub", nargs="?", help="The node's public key.")
    _add_connection(parser)
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its key).")
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    from fedrows.flower.launch.certificates import check_file

    key = Path(needed(typed, "key", "Name the node's public key, a file that ends in .pub"))
    check_file(key, "Name the public key that `fedrows deploy keys` has written")
    control = _control(typed)
    control.check()
    node = control.admit(key, typed["name"] or key.stem)
    say(f"Admitted {key} as node {node}.")
    return 0


def run(words: Sequence[str]) -> int:
    parser = Parser("deploy run", "Submits a Flower project, and waits until its run has finished.")
    parser.add_argument("project", metavar="PROJECT", nargs="?", help="The project's folder.")
    _add_connection(parser)
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="Settings to override.",
    )
    parser.add_argument(
        "--retries",
        metavar="N",
        default="10",
        help="How often to submit again when a server died (10).",
    )
    add_live(parser)
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    from fedrows.flower.launch.resubmit import submit_until_done

    project = Path(needed(typed, "project", "Name the folder of a Flower project"))
    config, known = _config(project, typed["config"])
    live, out = LivePage.typed(typed), {**known, **config}.get("out")
    if live.wanted and not out:
        raise UsageError(
            "--live needs the run's folder: give the project's configuration an `out`."
        )
    retries = number(typed["retries"], "--retries", 0, 10**6)
    control = _control(typed)
    control.check()
    say("The log of its rounds is logs/serverapp.log in the SuperLink's state folder.")
    with live.following(Path(str(out)).expanduser()):
        code = submit_until_done(control, project, config, retries, say)
    if code == 0 and out:
        say(f"Its folder on the server is {out}, with the report in report.html.")
    return code


def expel(words: Sequence[str]) -> int:
    """Takes a node off the list of those who may join."""
    parser = Parser("deploy expel", "Takes a node off the list of those who may join a SuperLink.")
    parser.add_argument("node", metavar="NODE", nargs="?", help="Its id, as `deploy status` shows.")
    _add_connection(parser)
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    node = number(needed(typed, "node", "Name the node's id"), "NODE", 1, 2**64)
    _control(typed).expel(node)
    say(f"Node {node} may not join any more.")
    return 0


def status(words: Sequence[str]) -> int:
    """Shows the runs and the nodes of a SuperLink."""
    parser = Parser("deploy status", "Shows the runs of a SuperLink, its nodes and its troubles.")
    parser.add_argument("run", metavar="RUN", nargs="?", help="One run (the last 20).")
    _add_connection(parser)
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    one = number(typed["run"], "RUN", 1, 2**64) if typed["run"] else None
    control = _control(typed)
    control.check()
    runs = [control.look(one)] if one is not None else control.runs()
    for run in runs:
        times = " ".join(
            f"{word} {when[:19].replace('T', ' ')}"
            for word, when in (("since", run.began), ("until", run.ended))
            if when
        )
        say(f"run {run.run}  {run.status:18}  {times}".rstrip())
        if run.details:
            say(f"    {run.details}")
    if not runs:
        say("No run was submitted.")
    if one is None:
        nodes = control.nodes()
        for node in nodes:
            say(f"node {node.node}  {node.status:10}  {node.name}".rstrip())
        if not nodes:
            say("No node is admitted.")
    if control.heard.notice:
        say(f"Trouble: {control.heard.notice}")
    return 0


def stop(words: Sequence[str]) -> int:
    """Ends a run, whoever submitted it."""
    parser = Parser("deploy stop", "Ends a run, whoever submitted it.")
    parser.add_argument("run", metavar="RUN", nargs="?", help="Its id (the only one that goes on).")
    _add_connection(parser)
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    control = _control(typed)
    if typed["run"]:
        state = control.look(number(typed["run"], "RUN", 1, 2**64))
    else:
        going = [run for run in control.runs() if not run.over]
        if not going:
            raise FedrowsError("No run is going on.")
        if len(going) > 1:
            which = ", ".join(str(run.run) for run in going)
            raise UsageError(f"Name the run to stop: those that go on are {which}.")
        (state,) = going
    if state.over:
        say(f"Run {state.run} has ended already: {state.status}.")
        return 0
    control.stop(state.run)
    say(f"Run {state.run} is stopped; its folder has every round that was finished.")
    return 0


def _add_connection(parser: Parser) -> None:
    parser.add_argument("--superlink", metavar="HOST:PORT", help="The SuperLink.")
    parser.add_argument("--certificates", metavar="DIR", help="The folder of ca.pem.")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS.")
    parser.add_argument(
        "--token",
        metavar="FILE",
        help="The SuperLink's control.token (this user's, if it is here).",
    )


def _control(typed: dict[str, Any]) -> ControlClient:
    from fedrows.flower.launch.certificates import read_certificate
    from fedrows.flower.launch.control import ControlClient, split_address
    from fedrows.flower.launch.control_token import find_token, read_token

    address = needed(typed, "superlink", "Name the SuperLink with --superlink HOST:PORT")
    host, port = split_address(address)
    certificates = trust(typed)
    ca = authority(certificates) if certificates else None
    if ca is not None:
        read_certificate(ca)
    token = Path(typed["token"]) if typed["token"] else find_token(host, port)
    if token is not None:
        read_token(token)
    return ControlClient(address, ca, token)


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

"""`fedrows deploy`: a federation on Flower, for show on this machine or on real hosts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError

ACTIONS = {
    "demo": "start a whole federation on this machine, and stop it again",
    "keys": "make a certificate authority, the SuperLink's certificate and node keys",
    "superlink": "start a SuperLink",
    "admit": "admit a node to a SuperLink, by its public key",
    "node": "join a SuperLink with a shard of data",
    "peer": "show the public signing key of a node, for private runs",
    "run": "submit a Flower project to a SuperLink, and wait for it",
}


def main(words: Sequence[str]) -> int:
    """Does what the first word says."""
    if not words or words[0] in ("-h", "--help"):
        say("usage: fedrows deploy ACTION …\n")
        for name, what in ACTIONS.items():
            say(f"  {name:10} {what}")
        say("\n  fedrows deploy ACTION --help      what an action does and its options")
        return 0
    action, rest = words[0], words[1:]
    if action not in ACTIONS:
        raise UnknownNameError("action", action, ACTIONS)
    if importlib.util.find_spec("flwr") is None:
        raise FedrowsError("`fedrows deploy` needs Flower: install fedrows[flower].")
    if action == "demo":
        from fedrows.cli.demo import main as demo

        return demo(rest)
    does: dict[str, Callable[[Sequence[str]], int]] = {
        "keys": _keys,
        "superlink": _superlink,
        "admit": _admit,
        "node": _node,
        "peer": _peer,
        "run": _run,
    }
    return does[action](rest)


def _keys(words: Sequence[str]) -> int:
    parser = Parser(
        "deploy keys",
        "Makes a certificate authority, the SuperLink's certificate and node keys, where they are "
        "missing.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", help="The folder of the keys.")
    parser.add_argument(
        "--host", metavar="NAMES", help="The SuperLink's host names, comma-separated."
    )
    parser.add_argument("--nodes", metavar="NAMES", help="Nodes to make keys for, comma-separated.")
    if (typed := _parsed(parser, words)) is None:
        return 0

    from fedrows.flower.launch import certificates

    folder = Path(_needed(typed, "folder", "Name the folder for the keys"))
    hosts, nodes = _list(typed["host"]), _list(typed["nodes"])
    server = folder / certificates.SERVER
    if not hosts and not server.exists():
        raise UsageError("Name the SuperLink's host with --host: its certificate is for that name.")
    if server.exists() and (other := set(hosts) - set(certificates.hosts_of(server))):
        raise certificates.CertificateError(
            f"{server} is there already, but not for {min(other)}: move it and "
            f"{certificates.SERVER_KEY} away to have them made anew."
        )
    made = []
    if not (folder / certificates.CA).exists():
        made.append(certificates.make_authority(folder))
    if not server.exists():
        made.append(certificates.make_server(folder, hosts))
    made += [certificates.make_node_key(folder, name) for name in nodes]
    for path in made:
        say(str(path))
    if not made:
        say(f"Everything is there already in {folder}.")
    return 0


def _superlink(words: Sequence[str]) -> int:
    parser = Parser("deploy superlink", "Starts a SuperLink, by default with TLS and node keys.")
    parser.add_argument("--certificates", metavar="DIR", help="Made by `fedrows deploy keys`.")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS and no node keys.")
    parser.add_argument("--host", default="0.0.0.0", help="Address to listen on (0.0.0.0).")
    parser.add_argument("--port", metavar="N", default="8000", help="Port to listen on (8000).")
    parser.add_argument("--state", metavar="DIR", default="superlink", help="Folder for its files.")
    parser.add_argument("--database", metavar="FILE", help="Its database (superlink.db in DIR).")
    parser.add_argument(
        "--control-from",
        metavar="NETWORKS",
        help="Networks that may submit runs and admit nodes, in addition to this machine.",
    )
    if (typed := _parsed(parser, words)) is None:
        return 0
    from fedrows.flower.launch import starting
    from fedrows.flower.launch.certificates import open_certificates
    from fedrows.flower.launch.gate import THIS_MACHINE, networks
    from fedrows.flower.launch.processes import LaunchError, ProcessGroup, check_port, environment

    certificates = _trust(typed)
    files = open_certificates(certificates.absolute()) if certificates else None
    port = _number(typed["port"], "--port", 1, 65535)
    allowed = ",".join(filter(None, [THIS_MACHINE, typed["control_from"]]))
    networks(allowed)
    state = _writable(Path(typed["state"]), "--state")
    check_port(typed["host"], port)
    database = Path(typed["database"]).absolute() if typed["database"] else state / "superlink.db"
    group = ProcessGroup(state / "logs", environment(state / "home", secrets.token_hex(8)))

    def begin() -> None:
        starting.begin_superlink(
            group,
            state / "home",
            (typed["host"], port),
            database,
            files,
            control_from=allowed,
        )
        if not starting.wait_for(group, {starting.SUPERLINK: starting.RUNS_ON}):
            raise LaunchError(f"Port {port} is in use: choose another with --port.")
        how = "with TLS and node keys" if files else "WITHOUT TLS, for anyone to join"
        say(f"The SuperLink listens on {typed['host']}:{port}, {how}. Logs: {group.logs}")

    return starting.supervise(group, begin)


def _node(words: Sequence[str]) -> int:
    parser = Parser("deploy node", "Joins a SuperLink with a shard of data.")
    parser.add_argument("--superlink", metavar="HOST:PORT", help="The SuperLink.")
    parser.add_argument("--certificates", metavar="DIR", help="The folder of ca.pem.")
    parser.add_argument("--key", metavar="FILE", help="This node's private key.")
    parser.add_argument("--shard", metavar="PATH", help="This node's data.")
    parser.add_argument("--state", metavar="DIR", help="Folder for what the node keeps.")
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its key).")
    parser.add_argument("--poll", metavar="X", default="1", help="Seconds between requests (1).")
    parser.add_argument("--apps", metavar="HASHES", help="SHA-256 of the only apps that may run.")
    parser.add_argument("--trusted-entities", metavar="FILE", help="Whose signed apps may run.")
    parser.add_argument("--peers", metavar="FILE", help="The nodes' signing keys (private runs).")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS and no key.")
    if (typed := _parsed(parser, words)) is None:
        return 0
    from fedrows.flower.launch import starting
    from fedrows.flower.launch.certificates import check_file, check_node_key, read_certificate
    from fedrows.flower.launch.control import check_reachable
    from fedrows.flower.launch.flwr_patches import app_hashes
    from fedrows.flower.launch.processes import ProcessGroup, environment
    from fedrows.flower.launch.supernode import POLL
    from fedrows.flower.launch.warm_executor import APPS, READY
    from fedrows.flower.wire.signing import read_peers

    superlink = _needed(typed, "superlink", "Name the SuperLink with --superlink HOST:PORT")
    shard = Path(_needed(typed, "shard", "Name this node's data with --shard")).absolute()
    folder = Path(_needed(typed, "state", "Name a folder for the node's state with --state"))
    certificates = _trust(typed)
    ca = _authority(certificates) if certificates else None
    key = Path(_needed(typed, "key", "Name this node's key with --key")) if ca else None
    if ca is None and typed["key"]:
        raise UsageError("--key proves a node by TLS: leave it out, or leave out --insecure.")
    poll = _positive(typed["poll"], "--poll")
    apps = app_hashes(typed["apps"] or "")
    if ca is not None and key is not None:
        read_certificate(ca)
        check_node_key(key)
    if not shard.exists():
        raise FedrowsError(f"There is no shard {shard}: name this node's data with --shard.")
    if typed["trusted_entities"]:
        check_file(Path(typed["trusted_entities"]), "Name the right file with --trusted-entities")
    check_reachable(superlink, ca)
    state = _writable(folder, "--state")
    name = typed["name"] or (key.stem if key else state.name)
    if not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(f"{name!r} cannot be a node's name: use letters, digits, dots and dashes.")
    refused = state / "refused.txt"
    refused.unlink(missing_ok=True)
    home = state / "home"
    settings = {POLL: str(poll), APPS: ",".join(apps)}
    group = ProcessGroup(state / "logs", environment(home, secrets.token_hex(8), **settings))
    config = {"shard": str(shard), "state": str(state), "name": name}
    if typed["peers"]:
        read_peers(Path(typed["peers"]))  # it must be right before anything starts
        config["peers"] = str(Path(typed["peers"]).absolute())
    spec = starting.NodeSpec(name, config)
    trusted = typed["trusted_entities"]
    more = ["--trusted-entities", str(Path(trusted).absolute())] if trusted else []

    def begin() -> None:
        again = True
        while again:  # the port of its own executor may be lost
            starting.begin_node(spec, superlink, group, home, ca=ca, key=key, more=more)
            wanted = {name: starting.ACTIVE, f"{name}-app": READY}
            again = not starting.wait_for(group, wanted)
            if again:
                group.kill()
        say(f"Node {name} has joined {superlink}. Logs: {group.logs}")

    def look() -> str | None:
        return refused.read_text("utf-8").strip() if refused.is_file() else None

    return starting.supervise(group, begin, look)


def _peer(words: Sequence[str]) -> int:
    parser = Parser("deploy peer", "Shows a node's public signing key; makes one if need be.")
    parser.add_argument("--state", metavar="DIR", help="The node's state folder.")
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its folder).")
    if (typed := _parsed(parser, words)) is None:
        return 0
    from fedrows.flower.wire.signing import own_key

    folder = Path(_needed(typed, "state", "Name the node's state folder with --state"))
    state = _writable(folder, "--state")
    say(json.dumps({typed["name"] or state.name: own_key(state).public.hex()}))
    return 0


def _admit(words: Sequence[str]) -> int:
    parser = Parser("deploy admit", "Admits a node to a SuperLink, by its public key.")
    parser.add_argument("key", metavar="KEY.pub", nargs="?", help="The node's public key.")
    _add_connection(parser)
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its key).")
    if (typed := _parsed(parser, words)) is None:
        return 0
    from fedrows.flower.launch.certificates import check_file

    key = Path(_needed(typed, "key", "Name the node's public key, a file that ends in .pub"))
    check_file(key, "Name the public key that `fedrows deploy keys` has written")
    with tempfile.TemporaryDirectory() as home:
        control = _control(typed, Path(home))
        control.check()
        node = control.admit(key, typed["name"] or key.stem)
    say(f"Admitted {key} as node {node}.")
    return 0


def _run(words: Sequence[str]) -> int:
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
    if (typed := _parsed(parser, words)) is None:
        return 0
    from fedrows.flower.launch.resubmit import submit_until_done

    project = Path(_needed(typed, "project", "Name the folder of a Flower project"))
    config = _config(project, typed["config"])
    retries = _number(typed["retries"], "--retries", 0, 10**6)
    with tempfile.TemporaryDirectory() as home:
        control = _control(typed, Path(home))
        control.check()
        return submit_until_done(control, project, config, retries, say)


def _add_connection(parser: Parser) -> None:
    parser.add_argument("--superlink", metavar="HOST:PORT", help="The SuperLink.")
    parser.add_argument("--certificates", metavar="DIR", help="The folder of ca.pem.")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS.")


def _control(typed: dict[str, Any], home: Path) -> Any:
    from fedrows.flower.launch.certificates import read_certificate
    from fedrows.flower.launch.control import ControlClient, split_address

    address = _needed(typed, "superlink", "Name the SuperLink with --superlink HOST:PORT")
    split_address(address)
    certificates = _trust(typed)
    ca = _authority(certificates) if certificates else None
    if ca is not None:
        read_certificate(ca)
    return ControlClient(address, home, ca)


def _trust(typed: dict[str, Any]) -> Path | None:
    """The folder of certificates; None if it was asked to do without."""
    if typed["insecure"] and typed["certificates"]:
        raise UsageError("--insecure and --certificates contradict each other: choose one.")
    if not typed["insecure"] and not typed["certificates"]:
        raise UsageError(
            "Name the folder of certificates with --certificates, or ask to do without TLS with "
            "--insecure."
        )
    return Path(typed["certificates"]) if typed["certificates"] else None


def _authority(certificates: Path) -> Path:
    from fedrows.flower.launch.certificates import CA

    return (certificates / CA if certificates.is_dir() else certificates).absolute()


def _config(project: Path, pairs: Sequence[str]) -> dict[str, Any]:
    """What was typed as KEY=VALUE; a value is TOML, or else text."""
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
            raise UnknownNameError("setting", key, known)
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        config[key] = value if isinstance(value, str | int | float | bool) else text
    return config


def _parsed(parser: Parser, words: Sequence[str]) -> dict[str, Any] | None:
    """What was typed; None if it was a call for help, which is then answered."""
    if any(word in ("-h", "--help") for word in words):
        parser.print_help()
        return None
    return parser.parse(words)


def _needed(typed: dict[str, Any], name: str, otherwise: str) -> str:
    if not typed[name]:
        raise UsageError(f"{otherwise}.")
    return str(typed[name])


def _list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _number(text: str, flag: str, low: int, high: int) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{flag} is {text!r}, but must be a whole number from {low} to {high}.")
    return int(text)


def _positive(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise UsageError(f"{flag} is {text!r}, but must be a number from 0.05 to 3600.")
    return value


def _writable(folder: Path, flag: str) -> Path:
    """The folder, made if need be; raises if it cannot be written."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ok = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        ok = False
    if not ok:
        raise FedrowsError(f"{folder} is not a folder that can be written: choose one with {flag}.")
    return folder

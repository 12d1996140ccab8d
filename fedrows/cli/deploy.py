"""`fedrows deploy`: a federation on Flower, for show on this machine or on real hosts."""

from __future__ import annotations

import importlib.util
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrows.cli import module_of
from fedrows.cli.deploy_typed import add_joining, needed, trust, writable
from fedrows.cli.flags import HELP, Parser, UsageError, comma_list, whole_number
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError

if TYPE_CHECKING:
    from fedrows.flower.launch.processes import ProcessGroup

ACTIONS = {  # name → (module.function, what it does)
    "demo": ("demo.main", "start a whole federation on this machine, and stop it again"),
    "keys": (
        "deploy.keys",
        "make a certificate authority, the SuperLink's certificate and node keys",
    ),
    "superlink": ("deploy.superlink", "start a SuperLink"),
    "admit": ("deploy_operator.admit", "admit a node to a SuperLink, by its public key"),
    "revoke": ("deploy_operator.revoke", "refuse a node's key from now on; runs go on without it"),
    "rotate": (
        "deploy_rotate.main",
        "replace certificates or a node's key, and say what must be restarted",
    ),
    "node": ("deploy.node", "join a SuperLink with a shard of data"),
    "gateway": ("deploy_gateway.main", "join a SuperLink as a node whose clients are devices"),
    "gateway-token": (
        "deploy_gateway.tokens",
        "make one-time tokens that enrol devices at a gateway",
    ),
    "gateway-devices": ("deploy_gateway.devices", "show the devices of a gateway, or take one out"),
    "hash": ("deploy_operator.app_hash", "show the hash of a project, by which nodes pin it"),
    "policy": ("deploy_policy.main", "write a node's policy: what a run may ask of it"),
    "peer": ("deploy.peer", "show the public signing key of a node, for private runs"),
    "run": ("deploy_operator.run", "submit a Flower project to a SuperLink, and wait for it"),
    "status": ("deploy_status.status", "show the runs of a SuperLink and its nodes"),
    "nodes": ("deploy_status.nodes", "show the nodes: who is there, who answers, what was refused"),
    "stop": ("deploy_operator.stop", "end a run after its present round, whoever submitted it"),
    "export": ("deploy_operator.export", "write the model of a deployed run as a bundle"),
}


def main(words: Sequence[str]) -> int:
    if not words or words[0] in HELP:
        say("usage: fedrows deploy ACTION …\n")
        for name, (_, text) in ACTIONS.items():
            say(f"  {name:15} {text}")
        say("\n  fedrows deploy ACTION --help      what an action does and its options")
        return 0
    action, rest = words[0], words[1:]
    if action not in ACTIONS:
        raise UnknownNameError("action", action, ACTIONS)
    if importlib.util.find_spec("flwr") is None:
        raise FedrowsError("`fedrows deploy` needs Flower: install fedrows[flower].")
    module, function = ACTIONS[action][0].split(".")
    return int(getattr(module_of(module), function)(rest))


def keys(words: Sequence[str]) -> int:
    parser = Parser(
        "deploy keys",
        "Makes a certificate authority, the SuperLink's certificate and node keys, where they are "
        "missing.",
    )
    add = parser.add_argument
    add("folder", metavar="DIR", nargs="?", help="The folder of the keys.")
    add("--host", metavar="NAMES", help="The SuperLink's host names, comma-separated.")
    add("--nodes", metavar="NAMES", help="Nodes to make keys for, comma-separated.")
    typed = parser.parse(words)

    from fedrows.flower.launch import certificates

    folder = Path(needed(typed, "folder", "Name the folder for the keys"))
    hosts, nodes = comma_list(typed["host"]), comma_list(typed["nodes"])
    server = folder / certificates.SERVER
    if not hosts and not server.exists():
        raise UsageError("Name the SuperLink's host with --host: its certificate is for that name.")
    if server.exists() and (other := set(hosts) - set(certificates.hosts_of(server))):
        raise certificates.CertificateError(
            f"{server} is there already, but not for {min(other)}: move it and "
            f"{certificates.SERVER_KEY} away to have them made anew."
        )
    certificates.check_names(hosts, nodes)  # before anything is made
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


def superlink(words: Sequence[str]) -> int:
    parser = Parser("deploy superlink", "Starts a SuperLink, by default with TLS and node keys.")
    add = parser.add_argument
    add("--certificates", metavar="DIR", help="Made by `fedrows deploy keys`.")
    add("--insecure", action="store_true", help="Use no TLS and no node keys.")
    add("--host", default="0.0.0.0", help="Address to listen on (0.0.0.0).")
    add("--port", metavar="N", default="8000", help="Port to listen on (8000).")
    add("--state", metavar="DIR", default="superlink", help="Folder for its files.")
    add("--database", metavar="FILE", help="Its database (superlink.db in DIR).")
    add(
        "--control-from",
        metavar="NETWORKS",
        help="Networks that may submit runs and admit nodes, in addition to this machine.",
    )
    add("--max-body", metavar="MB", default="256", help="The largest message of a node (256).")
    typed = parser.parse(words)
    from fedrows.flower.launch import control_token, starting, supervising
    from fedrows.flower.launch.certificates import open_certificates
    from fedrows.flower.launch.gate import THIS_MACHINE, networks
    from fedrows.flower.launch.processes import LaunchError, ProcessGroup, check_port, environment

    certificates = trust(typed)
    files = open_certificates(certificates.absolute()) if certificates else None
    port = whole_number("--port", typed["port"], 1, 65535)
    largest = whole_number("--max-body", typed["max_body"], 1, 2048)
    allowed = ",".join(filter(None, [THIS_MACHINE, typed["control_from"]]))
    networks(allowed)
    state = writable(Path(typed["state"]), "--state")
    check_port(typed["host"], port)
    database = Path(typed["database"]).absolute() if typed["database"] else state / "superlink.db"
    group = ProcessGroup(state / "logs", environment(state / "home", secrets.token_hex(8)))
    repeat = supervising.Repeater(group, say)
    room = supervising.DiskWatch(database.parent, say)
    database_watch = supervising.DatabaseWatch(database, say)

    def begin() -> None:
        starting.begin_superlink(
            group,
            state / "home",
            (typed["host"], port),
            database,
            files,
            control_from=allowed,
            max_body=largest * 2**20,
        )
        if not starting.wait_for(
            group, {starting.SUPERLINK: starting.RUNS_ON}, repeat=lambda: repeat() or room()
        ):
            raise LaunchError(f"Port {port} is in use: choose another with --port.")
        control_token.publish(control_token.make_token(state / "home"), port)
        how = "with TLS and node keys" if files else "WITHOUT TLS, for anyone to join"
        say(f"The SuperLink listens on {typed['host']}:{port}, {how}. Logs: {group.logs}")

    return supervising.supervise(
        group, begin, repeat=lambda: repeat() or room() or database_watch()
    )


def node(words: Sequence[str]) -> int:
    parser = Parser("deploy node", "Joins a SuperLink with a shard of data.")
    add_joining(parser, "This node's data.")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS and no key.")
    typed = parser.parse(words)
    from fedrows.cli.deploy_joining import Joining, stay
    from fedrows.cli.deploy_policy import node_files

    joining = Joining.typed(typed, "this node's data")
    joining.check_reachable()
    spec = joining.spec(**node_files(typed))

    def joined(group: ProcessGroup) -> None:
        say(f"Node {spec.name} has joined {joining.superlink}. Logs: {group.logs}")

    return stay(joining, spec, joined)


def peer(words: Sequence[str]) -> int:
    parser = Parser("deploy peer", "Shows a node's public signing key; makes one if need be.")
    parser.add_argument("--state", metavar="DIR", help="The node's state folder.")
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its folder).")
    typed = parser.parse(words)
    from fedrows.flower.wire.signing import own_key

    folder = Path(needed(typed, "state", "Name the node's state folder with --state"))
    state = writable(folder, "--state")
    say(json.dumps({typed["name"] or state.name: own_key(state).public.hex()}))
    return 0

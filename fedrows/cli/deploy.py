"""`fedrows deploy`: a federation on Flower, for show on this machine or on real hosts."""

from __future__ import annotations

import importlib.util
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrows.cli import deploy_operator, deploy_rotate, deploy_status
from fedrows.cli.deploy_typed import add_joining, comma_list, needed, number, trust, writable
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError

if TYPE_CHECKING:
    from fedrows.flower.launch.processes import ProcessGroup

ACTIONS = {
    "demo": "start a whole federation on this machine, and stop it again",
    "keys": "make a certificate authority, the SuperLink's certificate and node keys",
    "superlink": "start a SuperLink",
    "admit": "admit a node to a SuperLink, by its public key",
    "revoke": "refuse a node's key from now on; runs go on without it",
    "rotate": "replace certificates or a node's key, and say what must be restarted",
    "node": "join a SuperLink with a shard of data",
    "gateway": "join a SuperLink as a node whose clients are devices",
    "gateway-token": "make one-time tokens that enrol devices at a gateway",
    "gateway-devices": "show the devices of a gateway, or take one out",
    "hash": "show the hash of a project, by which nodes pin it",
    "policy": "write a node's policy: what a run may ask of it",
    "peer": "show the public signing key of a node, for private runs",
    "run": "submit a Flower project to a SuperLink, and wait for it",
    "status": "show the runs of a SuperLink and its nodes",
    "nodes": "show the nodes: who is there, who answers, what was refused",
    "stop": "end a run after its present round, whoever submitted it",
    "export": "write the model of a deployed run as a bundle",
}


def main(words: Sequence[str]) -> int:
    """Does what the first word says."""
    if not words or words[0] in ("-h", "--help"):
        say("usage: fedrows deploy ACTION …\n")
        for name, what in ACTIONS.items():
            say(f"  {name:15} {what}")
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
    if action == "policy":
        from fedrows.cli.deploy_policy import main as policy

        return policy(rest)
    if action.startswith("gateway"):
        from fedrows.cli import deploy_gateway

        does_gateway = {
            "gateway": deploy_gateway.main,
            "gateway-token": deploy_gateway.tokens,
            "gateway-devices": deploy_gateway.devices,
        }
        return does_gateway[action](rest)
    does: dict[str, Callable[[Sequence[str]], int]] = {
        "keys": _keys,
        "superlink": _superlink,
        "admit": deploy_operator.admit,
        "revoke": deploy_operator.revoke,
        "rotate": deploy_rotate.main,
        "node": _node,
        "peer": _peer,
        "hash": deploy_operator.app_hash,
        "run": deploy_operator.run,
        "status": deploy_status.status,
        "nodes": deploy_status.nodes,
        "stop": deploy_operator.stop,
        "export": deploy_operator.export,
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
    if (typed := parser.parse_or_help(words)) is None:
        return 0

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
    parser.add_argument(
        "--max-body", metavar="MB", default="256", help="The largest message of a node (256)."
    )
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    from fedrows.flower.launch import control_token, starting, supervising
    from fedrows.flower.launch.certificates import open_certificates
    from fedrows.flower.launch.gate import THIS_MACHINE, networks
    from fedrows.flower.launch.processes import LaunchError, ProcessGroup, check_port, environment

    certificates = trust(typed)
    files = open_certificates(certificates.absolute()) if certificates else None
    port = number(typed["port"], "--port", 1, 65535)
    largest = number(typed["max_body"], "--max-body", 1, 2048)
    allowed = ",".join(filter(None, [THIS_MACHINE, typed["control_from"]]))
    networks(allowed)
    state = writable(Path(typed["state"]), "--state")
    check_port(typed["host"], port)
    database = Path(typed["database"]).absolute() if typed["database"] else state / "superlink.db"
    group = ProcessGroup(state / "logs", environment(state / "home", secrets.token_hex(8)))
    repeat = supervising.Repeater(group, say)
    room = supervising.DiskWatch(database.parent, say)
    kept = supervising.DatabaseWatch(database, say)

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

    return supervising.supervise(group, begin, repeat=lambda: repeat() or room() or kept())


def _node(words: Sequence[str]) -> int:
    parser = Parser("deploy node", "Joins a SuperLink with a shard of data.")
    add_joining(parser, "This node's data.")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS and no key.")
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    from fedrows.cli.deploy_joining import Joining, stay
    from fedrows.cli.deploy_policy import node_files

    joining = Joining.typed(typed, "this node's data")
    joining.check_reachable()
    spec = joining.spec(**node_files(typed))

    def joined(group: ProcessGroup) -> None:
        say(f"Node {spec.name} has joined {joining.superlink}. Logs: {group.logs}")

    return stay(joining, spec, joined)


def _peer(words: Sequence[str]) -> int:
    parser = Parser("deploy peer", "Shows a node's public signing key; makes one if need be.")
    parser.add_argument("--state", metavar="DIR", help="The node's state folder.")
    parser.add_argument("--name", metavar="NAME", help="The node's name (that of its folder).")
    if (typed := parser.parse_or_help(words)) is None:
        return 0
    from fedrows.flower.wire.signing import own_key

    folder = Path(needed(typed, "state", "Name the node's state folder with --state"))
    state = writable(folder, "--state")
    say(json.dumps({typed["name"] or state.name: own_key(state).public.hex()}))
    return 0

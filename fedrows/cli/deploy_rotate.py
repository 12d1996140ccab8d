"""`fedrows deploy rotate`: new certificates and keys, and what must be restarted for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedrows.cli.deploy_typed import needed
from fedrows.cli.flags import Parser, UsageError, comma_list
from fedrows.cli.show import say
from fedrows.flower.launch import rotation


def main(words: Sequence[str]) -> int:
    parser = Parser(
        "deploy rotate",
        "Replaces certificates or a node's key. The old ones are put aside in DIR/old.",
    )
    add = parser.add_argument
    add("folder", metavar="DIR", nargs="?", help="The folder of the keys.")
    add("--server", action="store_true", help="The SuperLink's certificate.")
    add("--host", metavar="NAMES", help="With --server: its host names (those that it has).")
    add("--authority", action="store_true", help="The certificate authority.")
    add(
        "--finish",
        action="store_true",
        help="End the rotation of the authority: trust the old no more.",
    )
    add("--node", metavar="NAME", help="The key of this node.")
    typed = parser.parse(words)
    folder = Path(needed(typed, "folder", "Name the folder of the keys"))
    chosen = [name for name in ("server", "authority", "finish", "node") if typed[name]]
    if len(chosen) != 1:
        raise UsageError(
            "Choose what to replace: one of --server, --authority, --finish and --node NAME."
        )
    if typed["host"] and not typed["server"]:
        raise UsageError("--host is for --server: leave it out.")
    rotate: dict[str, Callable[[], Path]] = {
        "server": lambda: rotation.rotate_server(folder, comma_list(typed["host"])),
        "authority": lambda: rotation.rotate_authority(folder),
        "finish": lambda: rotation.finish_authority(folder),
        "node": lambda: rotation.rotate_node(folder, typed["node"]),
    }
    old = rotate[chosen[0]]()
    for line in _STEPS[chosen[0]]:
        say(line.format(folder=folder, node=typed["node"]))
    say(f"The old files are in {old}: delete them when everything runs.")
    return 0


_STEPS = {
    "server": (
        "{folder}/server.pem and server.key are new, signed by the same authority.",
        "1. Copy both to the SuperLink. It uses them within 10 seconds; nothing is restarted.",
        "If an authority signed them that is newer than the SuperLink's start, start the SuperLink "
        "again: nodes come back by themselves, and `fedrows deploy run` submits its run again.",
    ),
    "authority": (
        "{folder}/ca.key is new, and ca.pem vouches for the new authority and for the old one.",
        "1. Copy ca.pem to the SuperLink, to operators and to every node; start each node again, "
        "one at a time. The run goes on meanwhile.",
        "2. Then: fedrows deploy rotate {folder} --server, copy server.pem and server.key to the "
        "SuperLink, and start the SuperLink again.",
        "3. Then: fedrows deploy rotate {folder} --finish, and copy ca.pem everywhere once more.",
    ),
    "finish": (
        "{folder}/ca.pem vouches for the new authority alone.",
        "1. Copy it to the SuperLink, to operators and to every node. Each uses it from its next "
        "start on.",
    ),
    "node": (
        "{folder}/nodes/{node}.key and {node}.pub are new.",
        "1. Admit the new key: fedrows deploy admit {folder}/nodes/{node}.pub …",
        "2. Copy {node}.key to the node, and start the node again with its old state folder. Runs "
        "go on with it, for they know it by that folder.",
        "3. Revoke the old key by its id, which `fedrows deploy nodes` shows: "
        "fedrows deploy revoke ID …",
    ),
}

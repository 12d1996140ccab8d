"""What `fedrows deploy node` and `deploy gateway` share: a node as typed, its processes watched."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.cli.deploy_policy import NodeFolderWatch
from fedrows.cli.deploy_typed import authority, needed, positive, trust, trusted_apps, writable
from fedrows.cli.flags import UsageError
from fedrows.cli.show import say
from fedrows.errors import FedrowsError
from fedrows.flower.launch import starting, supervising
from fedrows.flower.launch.certificates import check_node_key, read_certificate
from fedrows.flower.launch.control import check_reachable
from fedrows.flower.launch.flwr_patches import app_hashes
from fedrows.flower.launch.processes import ProcessGroup, environment
from fedrows.flower.launch.starting import NodeSpec
from fedrows.flower.launch.supernode import POLL
from fedrows.flower.launch.warm_executor import APPS, READY


@dataclass(frozen=True)
class Joining:
    """A node that is to join a SuperLink, as it was typed and checked."""

    superlink: str
    shard: Path
    certificates: Path | None  # None: without TLS
    ca: Path | None
    key: Path | None
    settings: Mapping[str, str]  # of its processes
    words: Sequence[str]  # for its SuperNode
    folder: Path
    name: str | None

    @classmethod
    def typed(cls, typed: dict[str, Any], shard: str) -> Joining:
        """What the flags of `add_joining` say. shard: what --shard names, for an error."""
        superlink = needed(typed, "superlink", "Name the SuperLink with --superlink HOST:PORT")
        path = Path(needed(typed, "shard", f"Name {shard} with --shard")).absolute()
        folder = Path(needed(typed, "state", "Name a folder for the node's state with --state"))
        certificates = trust(typed)
        ca = authority(certificates) if certificates else None
        key = Path(needed(typed, "key", "Name this node's key with --key")) if ca else None
        if ca is None and typed["key"]:
            raise UsageError("--key proves a node by TLS: leave it out, or leave out --insecure.")
        poll, apps = positive(typed["poll"], "--poll"), app_hashes(typed["apps"] or "")
        words = trusted_apps(typed, apps)
        if ca is not None and key is not None:
            read_certificate(ca)
            check_node_key(key)
        if not path.exists():
            raise FedrowsError(f"There is no shard {path}: name {shard} with --shard.")
        settings = {POLL: str(poll), APPS: ",".join(apps)}
        name = typed["name"]
        return cls(superlink, path, certificates, ca, key, settings, words, folder, name)

    def check_reachable(self) -> None:
        check_reachable(self.superlink, self.ca)

    def spec(self, taken: str = "", **config: str | int | float) -> NodeSpec:
        """The node, with a state folder that can be written. taken: a name that it cannot have."""
        state = writable(self.folder, "--state")
        name = self.name or (self.key.stem if self.key else state.name)
        if not re.fullmatch(r"[\w.-]+", name) or name == taken:
            raise UsageError(
                f"{name!r} cannot be a node's name: use letters, digits, dots and dashes."
            )
        own = {"shard": str(self.shard), "state": str(state), "name": name}
        return NodeSpec(name, {**config, **own})


def stay(
    joining: Joining,
    spec: NodeSpec,
    joined: Callable[[ProcessGroup], None],
    beside: Callable[[ProcessGroup], Mapping[str, str]] = lambda group: {},
) -> int:
    """Starts a node's processes and stays with them; 0 when asked to end.

    joined: called when the node is there. beside: starts other processes of the node, and
    returns what each writes into its log when it is ready.
    """
    state = Path(str(spec.config["state"]))
    refused, home = state / "refused.txt", state / "home"
    refused.unlink(missing_ok=True)
    own = environment(home, secrets.token_hex(8), **joining.settings)
    group = ProcessGroup(state / "logs", own)
    watch, repeat = NodeFolderWatch(state), supervising.Repeater(group, say)

    def begin() -> None:
        again = True
        while again:  # the port of its own executor may be lost
            starting.begin_node(
                spec,
                joining.superlink,
                group,
                home,
                ca=joining.ca,
                key=joining.key,
                more=joining.words,
            )
            wanted = {**beside(group), spec.name: starting.ACTIVE, f"{spec.name}-app": READY}
            again = not starting.wait_for(group, wanted, repeat=repeat)
            if again:
                group.kill()
        joined(group)

    def look() -> str | None:
        watch()
        return refused.read_text("utf-8").strip() if refused.is_file() else None

    return supervising.supervise(group, begin, look, repeat, again=say)

"""`fedrows deploy policy`, and what `fedrows deploy node` does about a node's policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedrows.cli.flags import Parser, add_options, values_for
from fedrows.cli.show import say
from fedrows.files.whole import reason, write_private
from fedrows.flower.node.node_sums import forget_sums
from fedrows.flower.node.policy import NodePolicy, PolicyError, digest_of, read_policy
from fedrows.flower.node.state import DECLINED
from fedrows.flower.wire.signing import read_peers

CLEAR = (
    "This node has no --peers and no --policy: it takes part in runs in the clear, which show its "
    "clients' rows and updates to the server."
)


def main(words: Sequence[str]) -> int:
    parser = Parser(
        "deploy policy", "Writes a node's policy: what a run may ask of the node. See --out."
    )
    parser.add_argument("--out", metavar="FILE", help="The file to write; it is shown otherwise.")
    parser.add_argument("--peers", metavar="FILE", help="The nodes' keys: only for that list.")
    add_options(parser, "policy", [NodePolicy], {}, without=["peers"])
    typed = parser.parse(words)
    out, peers = typed.pop("out"), typed.pop("peers")
    dials, _ = values_for(NodePolicy, typed)
    if peers:
        read_peers(Path(peers))
        dials["peers"] = digest_of(Path(peers))
    policy = NodePolicy(**dials)
    if out and Path(out).exists():
        raise PolicyError(
            f"{out} is there already: move it away to have a policy written anew, or edit it."
        )
    if not out:
        say(policy.text().rstrip("\n"))
        return 0
    try:
        write_private(Path(out), policy.text().encode())
    except OSError as error:
        raise PolicyError(f"{out} cannot be written ({reason(error)}): choose another.") from None
    say(f"{out}")
    return 0


def node_files(typed: dict[str, Any]) -> dict[str, str]:
    """The node's list of peers and its policy, checked before anything starts."""
    config = {}
    if typed["peers"]:
        read_peers(Path(typed["peers"]))
        config["peers"] = str(Path(typed["peers"]).absolute())
    if typed["policy"]:
        read_policy(Path(typed["policy"]))
        config["policy"] = str(Path(typed["policy"]).absolute())
    if not config:
        say(CLEAR)
    return config


class NodeFolderWatch:
    """Looks after the state folder of a running node, every few seconds.

    It says why the node declined a run. It deletes what an unfinished sum has left behind.
    """

    def __init__(self, state: Path, tell: Callable[[str], None] = say) -> None:
        self._state, self._tell = state, tell
        self._declined, self._next = self._modified(), 0.0
        forget_sums(state, 0.0)  # a node that starts anew is a drop-out of what it was in

    def __call__(self) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + 5.0
        forget_sums(self._state)
        if (modified := self._modified()) != self._declined:
            self._declined = modified
            with suppress(OSError):
                why = (self._state / DECLINED).read_text("utf-8").strip()
                self._tell(f"This node declines: {why}")

    def _modified(self) -> int:
        with suppress(OSError):
            return (self._state / DECLINED).stat().st_mtime_ns
        return 0

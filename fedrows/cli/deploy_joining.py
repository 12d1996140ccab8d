"""What `fedrows deploy node` and `deploy gateway` have in common: a node's processes, watched."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedrows.cli.deploy_policy import NodeFolderWatch
from fedrows.cli.flags import UsageError
from fedrows.cli.show import say
from fedrows.flower.launch import starting, supervising
from fedrows.flower.launch.processes import ProcessGroup, environment
from fedrows.flower.launch.warm_executor import READY


def name_of(typed: str | None, key: Path | None, state: Path, taken: str = "") -> str:
    """A node's name: as it was typed, that of its key, or that of its folder."""
    name = typed or (key.stem if key else state.name)
    if not re.fullmatch(r"[\w.-]+", name) or name == taken:
        raise UsageError(f"{name!r} cannot be a node's name: use letters, digits, dots and dashes.")
    return name


def stay(
    spec: starting.NodeSpec,
    superlink: str,
    state: Path,
    settings: Mapping[str, str],
    *,
    ca: Path | None,
    key: Path | None,
    more: Sequence[str],
    said: Callable[[ProcessGroup], None],
    beside: Callable[[ProcessGroup], Mapping[str, str]] = lambda group: {},
) -> int:
    """Starts a node's processes and stays with them; 0 when asked to end.

    more: words for its SuperNode. said: tells whoever started it that it is there. beside: starts
    other processes of the node, and returns what each writes into its log when it is ready.
    """
    refused, home = state / "refused.txt", state / "home"
    refused.unlink(missing_ok=True)
    group = ProcessGroup(state / "logs", environment(home, secrets.token_hex(8), **settings))
    watch, repeat = NodeFolderWatch(state), supervising.Repeater(group, say)

    def begin() -> None:
        again = True
        while again:  # the port of its own executor may be lost
            starting.begin_node(spec, superlink, group, home, ca=ca, key=key, more=more)
            wanted = {**beside(group), spec.name: starting.ACTIVE, f"{spec.name}-app": READY}
            again = not starting.wait_for(group, wanted, repeat=repeat)
            if again:
                group.kill()
        said(group)

    def look() -> str | None:
        watch()
        return refused.read_text("utf-8").strip() if refused.is_file() else None

    return supervising.supervise(group, begin, look, repeat, again=say)

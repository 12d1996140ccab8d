"""A federation on this machine: a SuperLink and SuperNodes, started in order, taken down whole.

    with LocalFederation(folder, [NodeSpec("a", {"shard": "…"}), …]) as federation:
        run = federation.control.submit(project, {"rounds": 5})

Nodes are process groups: a SuperNode, its executor and its apps. The SuperLink, its executor and
the ServerApp are another. A SuperLink that starts again has
its port and its database as before, so the nodes find it again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from fedrows.flower.launch.certificates import Certificates
from fedrows.flower.launch.control import FINISHED, ControlClient
from fedrows.flower.launch.control_token import FILE as TOKEN_FILE
from fedrows.flower.launch.processes import (
    LaunchError,
    ProcessGroup,
    end_marked,
    environment,
    free_port,
    undisturbed,
)
from fedrows.flower.launch.starting import (
    ACTIVE,
    EXECUTOR,
    HOST,
    RUNS_ON,
    START_SECONDS,
    SUPERLINK,
    NodeSpec,
    begin_node,
    begin_superlink,
    wait_for,
)
from fedrows.flower.launch.supernode import POLL
from fedrows.flower.launch.warm_executor import READY

__all__ = ["LocalFederation", "LaunchError", "NodeSpec"]

TRIES = 3  # ports may be lost between finding and using them


class LocalFederation:
    """A SuperLink and its nodes; as a context manager it leaves nothing running behind.

    security: with it, TLS, and nodes prove themselves by the keys of their names.
    poll: seconds between two looks of a node for a message.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[NodeSpec],
        security: Certificates | None = None,
        poll: float = 0.25,
    ) -> None:
        names = [node.name for node in nodes]
        if len(set(names)) < len(names) or {SUPERLINK, EXECUTOR} & set(names):
            raise LaunchError(f"The nodes are called {', '.join(names)}: give each its own name.")
        if security is not None and (bare := set(names) - set(security.node_keys)):
            raise LaunchError(f"Node {min(bare)} has no key: make one with `fedrows deploy keys`.")
        self.folder = folder.absolute()
        self.nodes = list(nodes)
        self.security = security
        self.mark = secrets.token_hex(8)
        self.logs = self.folder / "logs"
        self.port = 0
        self._poll = poll
        self.link: ProcessGroup | None = None
        self.groups: dict[int, ProcessGroup] = {}

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    @property
    def control(self) -> ControlClient:
        """The operator's connection to the SuperLink."""
        ca = self.security.ca.absolute() if self.security else None
        return ControlClient(self.address, ca, self.token)

    @property
    def token(self) -> Path:
        """The file of the SuperLink's control token."""
        return self.folder / "home" / SUPERLINK / TOKEN_FILE

    def __enter__(self) -> LocalFederation:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.start_superlink()
            self.admit_nodes()
            for index in range(len(self.nodes)):
                self.begin_node(index)
            for index in range(len(self.nodes)):
                self.wait_for_node(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes everything down; a Ctrl-C meanwhile is heard when that is done."""
        with undisturbed():
            try:
                for group in [*self.groups.values(), *([self.link] if self.link else [])]:
                    group.kill()  # the state that matters is on disk, written whole
            finally:
                self.groups.clear()
                self.link = None
                end_marked(self.mark)

    def wait(self, run: int, timeout: float, every: float = 0.3) -> str:
        """The status of a run when it has finished; raises if that takes too long."""
        until = time.monotonic() + timeout
        while not (status := self.control.look(run).status).startswith(FINISHED):
            if time.monotonic() > until:
                raise LaunchError(
                    f"Run {run} is {status} after {timeout:g} s: look into {self.logs}."
                )
            time.sleep(every)
        return status

    def admit_nodes(self) -> None:
        """Lists the keys of all nodes at the SuperLink, if they have keys."""
        for node in self.nodes if self.security is not None else ():
            assert self.security is not None
            key = self.security.node_keys[node.name]
            self.control.admit(key.with_name(f"{node.name}.pub"), node.name)

    def wait_for_node(self, index: int, timeout: float = START_SECONDS) -> None:
        """Waits until a started node is known to the SuperLink and its executor is ready."""
        name = self.nodes[index].name
        for _ in range(TRIES):
            group = self.group(index)
            if wait_for(group, {name: ACTIVE, f"{name}-app": READY}, timeout):
                return
            group.kill()
            del self.groups[index]
            self.begin_node(index)
        raise LaunchError(f"Node {name} found no free port in {TRIES} tries.")

    def begin_node(self, index: int) -> None:
        """Starts the processes of a node that is not running."""
        if index in self.groups:
            raise LaunchError(f"Node {self.nodes[index].name} is running already.")
        node = self.nodes[index]
        keys = self.security
        home = self.folder / "home" / node.name
        self.groups[index] = begin_node(
            node,
            self.address,
            ProcessGroup(self.logs, environment(home, self.mark, **{POLL: str(self._poll)})),
            home,
            ca=keys.ca if keys else None,
            key=keys.node_keys[node.name] if keys else None,
        )

    def group(self, index: int) -> ProcessGroup:
        """The processes of a node."""
        if index not in self.groups:
            raise LaunchError(f"Node {self.nodes[index].name} is not running.")
        return self.groups[index]

    def start_superlink(self) -> None:
        """Starts the SuperLink, on the port it had before if it had one."""
        if self.link is not None:
            raise LaunchError("The SuperLink is running already.")
        again, home = bool(self.port), self.folder / "home" / SUPERLINK
        for _ in range(TRIES):
            self.port = self.port if again else free_port(HOST)
            self.link = begin_superlink(
                ProcessGroup(self.logs, environment(home, self.mark)),
                home,
                (HOST, self.port),
                self.folder / "superlink.db",
                self.security,
            )
            if wait_for(self.link, {SUPERLINK: RUNS_ON}, START_SECONDS):
                return  # its executor may take longer: runs wait for it
            self.link.kill()
            self.link = None
        raise LaunchError(f"The SuperLink cannot listen on port {self.port}: somebody else does.")

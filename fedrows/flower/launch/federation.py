"""A federation on this machine: a SuperLink and SuperNodes, started in order, taken down whole.

    with LocalFederation(folder, [NodeSpec("a", {"shard": "…"}), …]) as federation:
        run = federation.submit(project, {"rounds": 5})

Nodes are process groups: a SuperNode, its executor and its apps are killed, frozen and thawed as
one. The SuperLink, its executor and the ServerApp are another. A SuperLink that starts again has
its port and its database as before, so the nodes find it again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedrows.flower.launch.certificates import Certificates
from fedrows.flower.launch.control import FINISHED, ControlClient, Value
from fedrows.flower.launch.control_token import FILE as TOKEN_FILE
from fedrows.flower.launch.processes import (
    LaunchError,
    ProcessGroup,
    children,
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
        self._link: ProcessGroup | None = None
        self._groups: dict[int, ProcessGroup] = {}

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
                self._begin_node(index)
            for index in range(len(self.nodes)):
                self.wait_for_node(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes everything down; a Ctrl-C meanwhile is heard when that is done."""
        with undisturbed():
            try:
                for group in [*self._groups.values(), *([self._link] if self._link else [])]:
                    group.kill()  # the state that matters is on disk, written whole
            finally:
                self._groups.clear()
                self._link = None
                end_marked(self.mark)

    # -- runs --

    def submit(self, project: Path, config: Mapping[str, Value] | None = None) -> int:
        """The id of a new run of a Flower project."""
        return self.control.submit(project, config or {})

    def status(self, run: int) -> str:
        """pending, starting, running, finished:completed, finished:failed or finished:stopped."""
        return self.control.status(run)

    def stop(self, run: int) -> None:
        """Ends a run."""
        self.control.stop(run)

    def wait(self, run: int, timeout: float, every: float = 0.3) -> str:
        """The status of a run when it has finished; raises if that takes too long."""
        until = time.monotonic() + timeout
        while not (status := self.status(run)).startswith(FINISHED):
            if time.monotonic() > until:
                raise LaunchError(
                    f"Run {run} is {status} after {timeout:g} s: look into {self.logs}."
                )
            time.sleep(every)
        return status

    # -- nodes --

    def admit_nodes(self) -> None:
        """Lists the keys of all nodes at the SuperLink, if they have keys."""
        for node in self.nodes if self.security is not None else ():
            assert self.security is not None
            key = self.security.node_keys[node.name]
            self.control.admit(key.with_name(f"{node.name}.pub"), node.name)

    def start_node(self, index: int) -> None:
        """Starts a node that is not running, and waits until the SuperLink knows it."""
        self._begin_node(index)
        self.wait_for_node(index)

    def kill_node(self, index: int) -> None:
        """Ends a node at once, as a power cut would."""
        self._node(index).kill()
        del self._groups[index]

    def kill_clientapp(self, index: int) -> bool:
        """Ends the ClientApp of a node at once, and nothing else; False if none is running."""
        pids = children(self._node(index).processes[f"{self.nodes[index].name}-app"].pid)
        return _kill_all(pids)

    def freeze_node(self, index: int) -> None:
        """Stops a node in its tracks; it keeps its connections, and answers nobody."""
        self._node(index).signal(signal.SIGSTOP)

    def thaw_node(self, index: int) -> None:
        """Lets a frozen node go on."""
        self._node(index).signal(signal.SIGCONT)

    def wait_for_node(self, index: int, timeout: float = START_SECONDS) -> None:
        """Waits until a started node is known to the SuperLink and its executor is ready."""
        name = self.nodes[index].name
        for _ in range(TRIES):
            group = self._node(index)
            if wait_for(group, {name: ACTIVE, f"{name}-app": READY}, timeout):
                return
            group.kill()
            del self._groups[index]
            self._begin_node(index)
        raise LaunchError(f"Node {name} found no free port in {TRIES} tries.")

    def _begin_node(self, index: int) -> None:
        if index in self._groups:
            raise LaunchError(f"Node {self.nodes[index].name} is running already.")
        node = self.nodes[index]
        keys = self.security
        home = self.folder / "home" / node.name
        self._groups[index] = begin_node(
            node,
            self.address,
            ProcessGroup(self.logs, environment(home, self.mark, **{POLL: str(self._poll)})),
            home,
            ca=keys.ca if keys else None,
            key=keys.node_keys[node.name] if keys else None,
        )

    def _node(self, index: int) -> ProcessGroup:
        if index not in self._groups:
            raise LaunchError(f"Node {self.nodes[index].name} is not running.")
        return self._groups[index]

    # -- the server's side --

    def start_superlink(self) -> None:
        """Starts the SuperLink, on the port it had before if it had one."""
        if self._link is not None:
            raise LaunchError("The SuperLink is running already.")
        again, home = bool(self.port), self.folder / "home" / SUPERLINK
        for _ in range(TRIES):
            self.port = self.port if again else free_port(HOST)
            self._link = begin_superlink(
                ProcessGroup(self.logs, environment(home, self.mark)),
                home,
                (HOST, self.port),
                self.folder / "superlink.db",
                self.security,
            )
            if wait_for(self._link, {SUPERLINK: RUNS_ON}, START_SECONDS):
                return  # its executor may take longer: runs wait for it
            self._link.kill()
            self._link = None
        raise LaunchError(f"The SuperLink cannot listen on port {self.port}: somebody else does.")

    def kill_superlink(self) -> None:
        """Ends the SuperLink and its ServerApp at once, as a power cut would."""
        if self._link is None:
            raise LaunchError("The SuperLink is not running.")
        self._link.kill()
        self._link = None

    def kill_serverapp(self) -> bool:
        """Ends the ServerApp at once; False if none is running."""
        if self._link is None:
            raise LaunchError("The SuperLink is not running.")
        return _kill_all(children(self._link.processes[EXECUTOR].pid))


def _kill_all(pids: Sequence[int]) -> bool:
    """Ends processes at once; False if there are none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)

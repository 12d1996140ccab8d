"""What an operator asks of a SuperLink: submit a run, look at it, stop it, admit a node's key."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import reason
from fedrows.flower.launch.control_token import FILE as TOKEN_FILE
from fedrows.flower.launch.control_token import read_token
from fedrows.flower.launch.flwr_calls import (
    Heard,
    RefusalError,
    ask_gate,
    control_api,
    control_message,
    read_public_key,
    start_request,
)

FINISHED = "finished"
UNAUTHORIZED, NOT_FOUND = 401, 404
Value = str | int | float | bool


class ControlError(FedrowsError):
    """A SuperLink that cannot be reached, or that refuses what it was asked."""


class UnknownRunError(ControlError):
    """A run that the SuperLink knows nothing of."""


@dataclass(frozen=True)
class AdmittedNode:
    """A node that a SuperLink knows: its id, its name, and whether it is there."""

    node: int
    name: str
    status: str  # registered, online, offline


@dataclass(frozen=True)
class RunState:
    """How a run stands: its id, its status, what Flower says of it, and when it began and ended."""

    run: int
    status: str  # pending, starting, running, finished:completed, …:failed or …:stopped
    details: str = ""
    began: str = ""
    ended: str = ""

    @property
    def over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.status.startswith(FINISHED)


@dataclass(frozen=True)
class ControlClient:
    """An operator's connection to a SuperLink."""

    address: str
    ca: Path | None = None  # None: without TLS
    token: Path | None = None  # the SuperLink's control token
    heard: Heard = field(default_factory=Heard)  # what it said of itself, last

    def submit(self, project: Path, config: Mapping[str, Value]) -> int:
        """The id of a new run of a Flower project, its config overridden by `config`."""
        if not (project / "pyproject.toml").is_file():
            raise ControlError(
                f"{project} is not a Flower project, for it has no pyproject.toml: name its folder."
            )
        try:
            request = start_request(project.resolve(), config)
        except ValueError as error:
            raise ControlError(f"{project} is not a Flower project that can run: {error}") from None
        with self._asking("start the run") as api:
            return int(api.StartRun(request).run_id)

    def look(self, run: int) -> RunState:
        """How a run stands."""
        with self._asking(f"say how run {run} is") as api:
            return _state(
                api.ListRuns(control_message("ListRunsRequest", run_id=run)).run_dict[run]
            )

    def runs(self) -> list[RunState]:
        """The last runs that the SuperLink knows, the newest first."""
        with self._asking("list the runs") as api:
            answer = api.ListRuns(control_message("ListRunsRequest", limit=20))
        runs = sorted(answer.run_dict.values(), key=lambda run: str(run.pending_at), reverse=True)
        return [_state(run) for run in runs]

    def stop(self, run: int) -> None:
        """Ends a run."""
        with self._asking(f"stop run {run}") as api:
            if not api.StopRun(control_message("StopRunRequest", run_id=run)).success:
                raise ControlError(f"The SuperLink at {self.address} did not stop run {run}.")

    def admit(self, public_key: Path, name: str = "") -> int:
        """Lists a node's public key; the id that the node will have, whenever it comes."""
        try:
            key = read_public_key(public_key)
        except ValueError as error:
            raise ControlError(f"{public_key} cannot be admitted, for {error}.") from None
        request = control_message("RegisterNodeRequest", public_key=key, name=name or None)
        with self._asking("admit the node") as api:
            return int(api.RegisterNode(request).node_id)

    def expel(self, node: int) -> None:
        """Takes a node off the list of those who may join."""
        with self._asking(f"expel node {node}") as api:
            api.UnregisterNode(control_message("UnregisterNodeRequest", node_id=node))

    def nodes(self) -> list[AdmittedNode]:
        """The nodes that the SuperLink knows."""
        with self._asking("list its nodes") as api:
            listed = api.ListNodes(control_message("ListNodesRequest")).nodes_info
        nodes = [AdmittedNode(int(node.node_id), node.name, node.status) for node in listed]
        return [node for node in nodes if node.status != "unregistered"]

    def progress(self, run: int | None = None) -> list[dict[str, Any]]:
        """How runs stand by their own account (`run_progress`), the newest first; one, or all."""
        answer = self._own("say how its runs are", "runs" if run is None else f"runs/{run}")
        runs = printable(answer.get("runs", []))
        return [x for x in runs if isinstance(x, dict)] if isinstance(runs, list) else []

    def ask_to_stop(self, run: int) -> None:
        """Asks a run to end after its present round."""
        self._own(f"ask run {run} to stop", "stop", {"run": str(run)})

    def revoke(self, node: int) -> None:
        """Has a node's key refused from now on, and runs go on without the node."""
        self.expel(node)
        self._own(f"tell runs that node {node} is revoked", "revoke", {"node": str(node)})

    def watch_next(self, settings: Mapping[str, Value]) -> None:
        """Says how the next run is to be watched, beside what its own configuration says."""
        self._own("take the settings for the next run", "watching", dict(settings))

    def _own(
        self, what: str, path: str, request: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The answer of our gate; nothing if the SuperLink is another one's."""
        token = read_token(self.token) if self.token else ""
        with self._errors_named(what):
            return ask_gate(self.address, self.ca, token, path, request, self.heard)

    def check(self) -> None:
        """Raises a ControlError unless the SuperLink can be reached, by TLS if it is to be."""
        check_reachable(self.address, self.ca)

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[Any]:
        """flwr's client; its errors become a ControlError that says what was not done."""
        token = read_token(self.token) if self.token else ""
        with self._errors_named(what), control_api(self.address, self.ca, token, self.heard) as api:
            yield api

    @contextlib.contextmanager
    def _errors_named(self, what: str) -> Iterator[None]:
        """Makes errors of a request a ControlError that says what was not done."""
        try:
            yield
        except RefusalError as error:
            where = f"The SuperLink at {self.address} did not {what}"
            if error.status == UNAUTHORIZED:
                raise ControlError(
                    f"{where}, for the control token is missing or not the right one: name the "
                    f"file {TOKEN_FILE} of the SuperLink's state folder with --token."
                ) from None
            kind = UnknownRunError if error.status == NOT_FOUND else ControlError
            raise kind(f"{where}: {error}") from None
        except OSError as error:
            raise ControlError(
                f"The SuperLink at {self.address} did not {what}, for it does not answer ({error})."
            ) from None


def printable(value: Any) -> Any:
    """The same JSON without characters that a terminal would act on."""
    if isinstance(value, str):
        return "".join(x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in value)
    if isinstance(value, dict):
        return {printable(name): printable(x) for name, x in value.items()}
    return [printable(x) for x in value] if isinstance(value, list) else value


def _state(run: Any) -> RunState:
    status = ":".join(filter(None, (run.status.status, run.status.sub_status)))
    began = run.running_at or run.starting_at or run.pending_at
    return RunState(int(run.run_id), status, str(run.status.details), began, run.finished_at)


def check_reachable(address: str, ca: Path | None) -> None:
    """Raises a ControlError unless a SuperLink answers, with a certificate of the authority `ca`.

    ca: None asks without TLS.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=5.0) as plain:
            if ca is None:
                plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                if plain.recv(5) != b"HTTP/":
                    raise ConnectionResetError(None, "it does not speak plain HTTP")
            else:
                context = ssl.create_default_context(cafile=str(ca))
                with context.wrap_socket(plain, server_hostname=host):
                    pass
    except ssl.SSLCertVerificationError as error:
        raise ControlError(
            f"The SuperLink at {address} shows a certificate that {ca} does not vouch for "
            f"({error.verify_message}): check --certificates and the host's name."
        ) from None
    except ssl.SSLError as error:
        raise ControlError(
            f"The SuperLink at {address} does not speak TLS with us ({error.reason}): was it "
            "started with --insecure?"
        ) from None
    except OSError as error:
        raise ControlError(
            f"The SuperLink at {address} cannot be reached ({reason(error)}): check its address, "
            "and that it runs."
        ) from None


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; [::1]:8000 for IPv6."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ControlError(
            f"{address!r} is not an address: write HOST:PORT, as in example.org:8000."
        )
    return host.strip("[]"), int(port)

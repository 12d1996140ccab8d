"""What we ask of flwr 1.41 that it has no command or public function for.

run_status       how a run stands, in milliseconds; flwr's command takes a second
sign_off         takes a killed node off the SuperLink's list, or its key is refused for a minute
report_killed    says at once that a ServerApp was killed; flwr finds out after a minute
run_command      one of flwr's commands, in this process
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any


def run_status(address: str, ca: Path | None, run: int) -> tuple[str, str]:
    """A run's status and its details; raises an OSError if the SuperLink does not answer."""
    http = import_module("httpx")
    client = import_module("flwr.supercore.control").ControlHttpClient.from_server_address(
        server_address=address,
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        interceptors=[_version("flwr CLI")],
    )
    request = import_module("flwr.proto.control_pb2").ListRunsRequest(run_id=run)
    try:
        status = client.ListRuns(request).run_dict[run].status
    except http.HTTPError as error:
        raise OSError(" ".join(str(error).split())) from None
    finally:
        client.close()
    return ":".join(filter(None, (status.status, status.sub_status))), str(status.details)


def sign_off(superlink: str, ca: Path, key: Path, node: int) -> bool:
    """Signs a node off that was killed before it could do so itself; False if that failed."""
    try:
        ssh = import_module("cryptography.hazmat.primitives.serialization")
        private = ssh.load_ssh_private_key(key.read_bytes(), None)
        auth = import_module("flwr.supernode.node_auth_http_interceptor")
        fleet = import_module("flwr.supernode.fleet_http_client").FleetHttpClient
        request = import_module("flwr.proto.fleet_pb2").DeactivateNodeRequest(node_id=node)
        proof = auth.NodeAuthHttpInterceptor(private, private.public_key())
        interceptors = [_version("SuperNode"), proof]
        with fleet.from_server_address(
            superlink, False, ca.read_bytes(), interceptors=interceptors
        ) as client:
            client.DeactivateNode(request)
    except Exception:  # it was signed off already, or the SuperLink is away: it will say so
        return False
    return True


def report_killed(task: Any, signal: int) -> None:
    """Tells the SuperLink that a ServerApp was killed by a signal."""
    with contextlib.suppress(Exception):  # it will find out
        token = import_module("flwr.supercore.interceptors").RuntimeTokenHttpInterceptor(task.token)
        certificates = task.root_certificates_path
        client = import_module("flwr.supercore.runtime").RuntimeHttpClient.from_server_address(
            server_address=task.runtime_api_address,
            insecure=task.insecure,
            root_certificates=Path(certificates).read_bytes() if certificates else None,
            interceptors=[_version("SuperExec"), token],
        )
        details = f"The ServerApp was killed by signal {signal}."
        messages = import_module("flwr.proto.runtime_pb2")
        client.PushTaskOutput(messages.PushTaskOutputRequest(sub_status="failed", details=details))
        client.close()


def run_command(name: str, words: Sequence[str]) -> None:
    """Runs one of flwr's commands in this process."""
    command = load_command(name)
    sys.argv = [name, *words]
    command()


@functools.cache
def load_command(name: str) -> Callable[[], None]:
    """Imports one of flwr's commands."""
    (entry,) = entry_points(group="console_scripts", name=name)
    command: Callable[[], None] = entry.load()
    return command


def _version(component: str) -> Any:
    """Names the caller to flwr's servers, which ask for it."""
    interceptors = import_module("flwr.supercore.interceptors")
    return interceptors.RuntimeVersionHttpInterceptor(component_name=component)

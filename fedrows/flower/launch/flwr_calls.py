"""What we ask of flwr 1.41 that it has no command or public function for.

ask_gate         what our gate answers in its place
control_api      what flwr's command line asks, in milliseconds, and with our control token
sign_off         takes a killed node off the SuperLink's list, or its key is refused for a minute
report_killed    says at once that an app was killed; flwr finds out after a minute
run_command      one of flwr's commands, in this process
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ssl
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedrows.flower.launch.control_token import HEADER
from fedrows.flower.launch.notices import NOTICE, STARTED


@dataclass
class Heard:
    """What a SuperLink said of itself: what goes wrong, and a word that each start changes."""

    notice: str = ""
    started: str = ""

    def learn_(self, headers: Mapping[str, str]) -> None:
        """Takes note of what an answer says."""
        self.notice = headers.get(NOTICE, "")
        self.started = headers.get(STARTED, self.started)


@contextlib.contextmanager
def control_api(address: str, ca: Path | None, token: str, heard: Heard) -> Iterator[Any]:
    """flwr's client of a SuperLink's control API, which shows the token with every request.

    It raises an OSError if the SuperLink does not answer, and a RefusalError if it refuses.
    heard: gets what the SuperLink says of itself.
    """
    client = import_module("flwr.supercore.control").ControlHttpClient.from_server_address(
        server_address=address,
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        interceptors=[_version("flwr CLI"), _Operator(token, heard)],
    )
    try:
        yield client
    except httpx.HTTPStatusError as error:
        known = import_module("flwr.supercore.error").FlowerError.from_json(error.response.text)
        reasons = (known.message, known.public_details or "") if known else (error.response.text,)
        raise RefusalError(error.response.status_code, " ".join(filter(None, reasons))) from None
    except httpx.HTTPError as error:
        raise OSError(" ".join(str(error).split())) from None
    finally:
        client.close()


def ask_gate(
    address: str,
    ca: Path | None,
    token: str,
    path: str,
    request: Mapping[str, Any] | None,
    heard: Heard,
) -> dict[str, Any]:
    """The gate's own answer (`operator_api`), to a POST if there is a request.

    It is empty if the SuperLink has no such gate. Errors are those of `control_api`.
    """
    scheme = "https" if ca else "http"
    trusted = ssl.create_default_context(cafile=ca) if ca else True
    try:
        with httpx.Client(verify=trusted, trust_env=False, timeout=30.0) as client:
            answer = client.request(
                "GET" if request is None else "POST",
                f"{scheme}://{address}/v1/fedrows/{path}",
                headers={HEADER.decode(): token},
                json=request,
            )
    except httpx.HTTPError as error:
        raise OSError(" ".join(str(error).split())) from None
    heard.learn_(answer.headers)
    if answer.status_code == 404:
        return {}
    if answer.status_code != 200:
        raise RefusalError(answer.status_code, answer.text)
    facts = answer.json()
    return facts if isinstance(facts, dict) else {}


def control_message(kind: str, /, **fields: Any) -> Any:
    """A request of flwr's control API."""
    return getattr(import_module("flwr.proto.control_pb2"), kind)(**fields)


def start_request(project: Path, config: Mapping[str, Any]) -> Any:
    """The request to run a Flower project; raises a ValueError if it is not a whole one."""
    click = import_module("click")
    fab = import_module("flwr.proto.fab_pb2").Fab
    serde = import_module("flwr.common.serde")
    try:
        with warnings.catch_warnings():  # flwr uses what its libraries advise against
            warnings.simplefilter("ignore", DeprecationWarning)
            import_module("flwr.cli.config_utils").load_and_validate(project / "pyproject.toml")
            content = import_module("flwr.cli.build").build_fab_from_disk(project)
    except (click.ClickException, OSError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    finally:
        _forget_modules(project)
    return control_message(
        "StartRunRequest",
        fab=fab(hash_str=hashlib.sha256(content).hexdigest(), content=content),
        override_config=serde.user_config_to_proto(dict(config)),
    )


def _forget_modules(project: Path) -> None:
    """Takes a project's packages off the modules: another project may have the same names.

    flwr imports the package of an app when it looks for the app.
    """
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(origin, str) and Path(origin).is_relative_to(project):
            del sys.modules[name]


def read_public_key(path: Path) -> bytes:
    """A node's public key as flwr's requests have it; raises a ValueError if it is none."""
    primitives = import_module("flwr.supercore.primitives.asymmetric")
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except Exception:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("it is not the public key of a node")
    return bytes(primitives.public_key_to_bytes(key))


def sign_off(
    superlink: str, ca: Path, key: Path, node: int, tries: int = 8, pause: float = 0.25
) -> bool:
    """Signs a node off that was killed before it could do so itself; False if that failed.

    A connection that breaks is tried again: a node that is not signed off is refused for a minute.
    """
    try:
        private = serialization.load_ssh_private_key(key.read_bytes(), None)
        auth = import_module("flwr.supernode.node_auth_http_interceptor")
        fleet = import_module("flwr.supernode.fleet_http_client").FleetHttpClient
        request = import_module("flwr.proto.fleet_pb2").DeactivateNodeRequest(node_id=node)
        proof = auth.NodeAuthHttpInterceptor(private, private.public_key())
        interceptors = [_version("SuperNode"), proof]
        for left in reversed(range(tries)):
            try:
                with fleet.from_server_address(
                    superlink, False, ca.read_bytes(), interceptors=interceptors
                ) as client:
                    client.DeactivateNode(request)
                return True
            except httpx.TransportError:
                time.sleep(pause if left else 0)
    except Exception:  # it was signed off already, or has no right to: it will be told so
        pass
    return False


def report_killed(task: Any, how: str) -> None:
    """Tells a SuperLink or SuperNode how an app of its ended, if it cannot do so itself."""
    with contextlib.suppress(Exception):  # it will find out
        token = import_module("flwr.supercore.interceptors").RuntimeTokenHttpInterceptor(task.token)
        certificates = task.root_certificates_path
        client = import_module("flwr.supercore.runtime").RuntimeHttpClient.from_server_address(
            server_address=task.runtime_api_address,
            insecure=task.insecure,
            root_certificates=Path(certificates).read_bytes() if certificates else None,
            interceptors=[_version("SuperExec"), token],
        )
        details = f"The app {how}."
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
    colors = import_module("flwr.supercore.logger").LOG_COLORS
    colors.update(dict.fromkeys(colors, ""))  # logs go to files, and are read by programs
    return command


class RefusalError(Exception):
    """What a SuperLink refuses to do, with the status of its answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(" ".join(text.split())[:500] or "it gave no reason")
        self.status = status


class _Operator:
    """Shows the control token, and keeps what the answers say of the SuperLink."""

    def __init__(self, token: str, heard: Heard) -> None:
        self.token, self.heard = token, heard

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        if self.token:
            context.request.headers[HEADER.decode()] = self.token
        answer = call_next(context)
        self.heard.learn_(answer.headers)
        return answer


def _version(component: str) -> Any:
    """Names the caller to flwr's servers, which ask for it."""
    interceptors = import_module("flwr.supercore.interceptors")
    return interceptors.RuntimeVersionHttpInterceptor(component_name=component)

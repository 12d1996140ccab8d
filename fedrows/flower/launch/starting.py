"""How a SuperLink and a SuperNode are started: their options, their executors, their logs."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import tomli_w

from fedrows.files.whole import make_private, write_private
from fedrows.flower.launch.bell import BELL
from fedrows.flower.launch.certificates import Certificates
from fedrows.flower.launch.control import Value
from fedrows.flower.launch.control_token import make_token
from fedrows.flower.launch.gate import NODE_BODY, THIS_MACHINE
from fedrows.flower.launch.notices import LEFT
from fedrows.flower.launch.operator_folder import EVENTS, FOLDER
from fedrows.flower.launch.processes import (
    PORT_IN_USE,
    LaunchError,
    ProcessGroup,
    free_port,
    module,
)
from fedrows.flower.launch.superlink import CONTROL_FROM, CONTROL_TOKEN, MAX_BODY
from fedrows.flower.launch.supernode import LAST_ID

HOST = "127.0.0.1"
SUPERLINK, EXECUTOR = "superlink", "serverapp"
START_SECONDS = 300.0  # a machine with much other work imports for long
RUNS_ON = "Uvicorn running on"  # what a SuperLink that listens says
ACTIVE = "SuperNode ID:"  # what a SuperNode that is admitted says


@dataclass(frozen=True)
class NodeSpec:
    """A node: its name, and what its app finds in `context.node_config`."""

    name: str
    config: Mapping[str, Value] = field(default_factory=dict)


def begin_superlink(
    group: ProcessGroup,
    home: Path,
    listen: tuple[str, int],
    database: Path,
    security: Certificates | None,
    *,
    control_from: str = THIS_MACHINE,
    max_body: int = NODE_BODY,
) -> ProcessGroup:
    """Starts a SuperLink and the executor of its ServerApps; `group` with both, not yet ready."""
    host, port = listen
    seldom = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}  # a run is begun once
    group.environment = {
        **group.environment,
        **seldom,
        BELL: str((home / "bell").absolute()),
        LEFT: str((home / "notice").absolute()),
        FOLDER: str((home / "operator").absolute()),
        EVENTS: str((group.logs / "events.jsonl").absolute()),
        CONTROL_FROM: ",".join(filter(None, [control_from, _own_address(host)])),
        CONTROL_TOKEN: str(make_token(home)),
        MAX_BODY: str(max_body),
    }
    words = ["--host", host, "--port", str(port), "--database", str(database)]
    words.append("--disable-runtime-dependency-installation")
    trust = ["--insecure"]
    if security is not None:
        trust = ["--root-certificates", str(security.ca.absolute())]
        words += ["--ssl-ca-certfile", str(security.ca), "--ssl-certfile"]
        words += [str(security.certificate), "--ssl-keyfile", str(security.key)]
    words.append("--enable-supernode-auth" if security is not None else "--insecure")
    secret = _secret(home)
    words += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    _fresh(group.log(SUPERLINK), group.log(EXECUTOR))
    leader = group.start(SUPERLINK, module("fedrows.flower.launch.superlink", *words))
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    where = f"[{near}]:{port}" if ":" in near else f"{near}:{port}"
    _begin_executor(group, EXECUTOR, leader.pid, secret, where, *trust)
    return group


def begin_node(
    node: NodeSpec,
    superlink: str,
    group: ProcessGroup,
    home: Path,
    *,
    ca: Path | None,
    key: Path | None,
    more: Sequence[str] = (),
) -> ProcessGroup:
    """Starts a SuperNode and the executor of its apps; `group` with both, not yet ready.

    ca: the authority that vouches for the SuperLink; None speaks without TLS.
    key: the node's private key. more: further options of flower-supernode.
    """
    make_private(home)
    config = home / "node-config.toml"
    write_private(config, tomli_w.dumps(node.config).encode())
    port, secret = free_port(HOST), _secret(home)
    words = ["--superlink", superlink, "--host", HOST, "--port", str(port), *more]
    words += ["--root-certificates", str(ca.absolute())] if ca else ["--insecure"]
    words += ["--auth-supernode-private-key", str(key)] if key else []
    words += ["--node-config", str(config)] if node.config else []
    words += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    app, bell = f"{node.name}-app", str((home / "bell").absolute())
    group.environment = {**group.environment, BELL: bell}
    if known := re.findall(rf"{ACTIVE} (\d+)", _text(group.log(node.name))):
        group.environment = {**group.environment, LAST_ID: known[-1]}
    _fresh(group.log(node.name), group.log(app))
    leader = group.start(node.name, module("fedrows.flower.launch.supernode", *words))
    where = f"{HOST}:{port}"
    _begin_executor(group, app, leader.pid, secret, where, "--insecure", "--bell", bell)
    return group


def _begin_executor(
    group: ProcessGroup, name: str, leader: int, secret: Path, where: str, *words: str
) -> None:
    """Starts the executor of the apps of a SuperLink or SuperNode."""
    words = ("--runtime-api-address", where, "--parent-pid", str(leader), *words)
    words = (*words, "--superexec-auth-secret-file", str(secret))
    group.start(name, module("fedrows.flower.launch.warm_executor", *words))


def wait_for(
    group: ProcessGroup,
    wanted: Mapping[str, str],
    timeout: float = START_SECONDS,
    repeat: Callable[[], bool] = lambda: False,
) -> bool:
    """Waits for words in logs; False if a port was lost, an error if a process ended.

    repeat: is called all the time; True if there is a known reason to wait for longer.
    """
    until = time.monotonic() + timeout
    left = dict(wanted)
    while left:
        for name, words in list(left.items()):
            if words in _text(group.log(name)):
                del left[name]
        if not group.processes:
            raise LaunchError(f"{next(iter(wanted))} was killed while it started: start it again.")
        if (ended := group.ended) is not None:
            if any(p.poll() == PORT_IN_USE for p in group.processes.values()):
                return False
            raise LaunchError(why_ended(group, ended))
        if repeat():
            until = time.monotonic() + timeout
        if time.monotonic() > until:
            slow = next(iter(left))
            raise LaunchError(
                f"{slow} is not ready after {timeout:g} s: look into {group.log(slow)}."
            )
        time.sleep(0.05)
    return True


def why_ended(group: ProcessGroup, name: str) -> str:
    """Why a process has ended, in a sentence."""
    text = _text(group.log(name))
    if "Failed to activate SuperNode" in text:
        return (
            f"The SuperLink does not admit node {name}: list its public key there with `fedrows "
            "deploy admit`, or, if a node with this key was there a minute ago, start again later."
        )
    if "must be registered via the CLI" in text:
        return f"The SuperLink admits no node without a key: give node {name} one with --key."
    if "certificate verify failed" in text.lower():
        return f"The SuperLink's certificate is not one that {name} trusts: check its ca.pem."
    code = group.processes[name].poll() if name in group.processes else None
    last = f"killed by signal {-code}" if code is not None and code < 0 else group.tail(name)
    reason = f" ({last})" if last else ""
    return f"{name} has ended{reason}: look into {group.log(name)}."


def _own_address(host: str) -> str:
    """The address that this machine's requests to `host` come from, if it is not a loopback one."""
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError:
        return ""
    return "" if ip_address(address).is_unspecified else str(address)


def _text(log: Path) -> str:
    """What a log says so far; nothing if it is not there."""
    try:
        return log.read_text("utf-8", "replace")
    except OSError:
        return ""


def _fresh(*logs: Path) -> None:
    """Puts the logs of an earlier start aside, numbered: words of theirs are not ours."""
    for log in logs:
        if log.exists():
            taken = len(list(log.parent.glob(f"{log.stem}.[0-9]*.log")))
            log.rename(log.with_name(f"{log.stem}.{taken + 1}.log"))


def _secret(home: Path) -> Path:
    """A file that only we can read, by which an executor proves that it is ours."""
    path = home / "executor.secret"
    if not path.exists():
        make_private(home)
        write_private(path, secrets.token_bytes(32))
    return path

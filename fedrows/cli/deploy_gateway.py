"""`fedrows deploy gateway`: a node whose clients are devices, and the tokens that enrol them."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

from fedrows.cli.deploy_typed import add_joining, needed, positive, writable
from fedrows.cli.flags import Parser, UsageError, whole_number
from fedrows.cli.show import say
from fedrows.errors import FedrowsError

WEB = "devices"  # the name of the web process, and of its log
MOST_TOKENS = 10_000


def main(words: Sequence[str]) -> int:
    parser = Parser("deploy gateway", "Joins a SuperLink as a node whose clients are devices.")
    add = parser.add_argument
    add_joining(parser, "A sample of the task's data, for its tables and fields.")
    add("--tls-certificate", metavar="FILE", help="What devices see (server.pem of that folder).")
    add("--tls-key", metavar="FILE", help="Its key (server.key of that folder).")
    add("--host", default="0.0.0.0", help="Address for devices (0.0.0.0).")
    add("--port", metavar="N", default="8443", help="Port for devices (8443).")
    add("--devices", metavar="N", help="Devices to wait for (a round's clients).")
    add("--enough", metavar="X", default="1", help="Share of a round's devices to wait for (1).")
    add("--program", metavar="DIR", help="A device program, made beforehand.")
    add("--page", metavar="DIR", help="A page for browsers, served at /.")
    add("--insecure", action="store_true", help="Use no TLS and no key, on this machine alone.")
    typed = parser.parse(words)
    if importlib.util.find_spec("starlette") is None:
        raise FedrowsError("`fedrows deploy gateway` serves HTTPS: install fedrows[live,onnx].")
    from fedrows.cli.deploy_joining import Joining, stay
    from fedrows.cli.deploy_policy import node_files
    from fedrows.flower.gateway.programs import read_manifest
    from fedrows.flower.launch.certificates import SERVER, SERVER_KEY, check_file, hosts_of
    from fedrows.flower.launch.processes import ProcessGroup, check_port, module
    from fedrows.flower.launch.starting import RUNS_ON

    joining = Joining.typed(typed, "a sample of the data")
    host, port = typed["host"], whole_number("--port", typed["port"], 1, 65535)
    if joining.certificates is None:
        host = "127.0.0.1" if host == "0.0.0.0" else host
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise UsageError("Without TLS a gateway serves this machine alone: leave --host out.")
    if not 0 < (enough := positive(typed["enough"], "--enough")) <= 1:
        raise UsageError(f"--enough is {typed['enough']}, but it is a share: above 0, at most 1.")
    tls: list[str] = []
    if joining.certificates is not None and joining.ca is not None:
        shown = Path(typed["tls_certificate"] or joining.certificates / SERVER).absolute()
        secret = Path(typed["tls_key"] or joining.certificates / SERVER_KEY).absolute()
        check_file(shown, "Name the certificate for devices with --tls-certificate")
        check_file(secret, "Name the certificate's key with --tls-key")
        tls = ["--certificate", str(shown), "--key", str(secret)]
        tls += ["--ca", str(joining.ca), "--hosts", ",".join(hosts_of(shown))]
    config: dict[str, str | int | float] = {"gateway": "yes", "enough": float(enough)}
    if typed["devices"]:
        config["devices"] = whole_number("--devices", typed["devices"], 1, 10**6)
    if typed["program"]:
        read_manifest(program := Path(typed["program"]).absolute())
        config["program"] = str(program)
    page = Path(typed["page"]).absolute() if typed["page"] else None
    if page is not None and not page.exists():
        raise FedrowsError(f"There is no {page}: name the right one with --page.")
    joining.check_reachable()
    check_port(host, port)
    if typed["peers"] or typed["policy"]:
        config |= node_files(typed)
    spec = joining.spec(taken=WEB, **config)
    web = ["--state", str(spec.config["state"]), "--host", host, "--port", str(port), *tls]
    web += ["--page", str(page)] if page else []

    def serve(group: ProcessGroup) -> dict[str, str]:
        group.log(WEB).unlink(missing_ok=True)
        group.start(WEB, module("fedrows.flower.gateway.service", *web))
        return {WEB: RUNS_ON}

    def joined(group: ProcessGroup) -> None:
        how = "https" if tls else "http, WITHOUT TLS,"
        say(f"Gateway {spec.name} has joined {joining.superlink}. Logs: {group.logs}")
        say(f"It serves devices by {how} on {host}:{port}.")

    return stay(joining, spec, joined, serve)


def tokens(words: Sequence[str]) -> int:
    parser = Parser("deploy gateway-token", "Makes one-time tokens, each of which enrols a device.")
    add = parser.add_argument
    add("--state", metavar="DIR", help="The gateway's state folder.")
    add("--count", metavar="N", default="1", help="How many tokens (1).")
    add("--hours", metavar="X", default="24", help="How long they are good (24).")
    typed = parser.parse(words)
    from fedrows.flower.gateway.store import GatewayStore

    state = Path(needed(typed, "state", "Name the gateway's state folder with --state"))
    hours = positive(typed["hours"], "--hours")
    count = whole_number("--count", typed["count"], 1, MOST_TOKENS)
    store = GatewayStore(writable(state, "--state"))
    for _ in range(count):
        say(store.make_token(hours))
    return 0


def devices(words: Sequence[str]) -> int:
    parser = Parser("deploy gateway-devices", "Shows the devices of a gateway.")
    parser.add_argument("--state", metavar="DIR", help="The gateway's state folder.")
    parser.add_argument("--remove", metavar="NAME", help="Take this device out, with its key.")
    typed = parser.parse(words)
    from fedrows.flower.gateway.store import FILE, GatewayStore

    state = Path(needed(typed, "state", "Name the gateway's state folder with --state"))
    if not (state / FILE).is_file():
        raise FedrowsError(f"{state} has no {FILE}: name a gateway's state folder with --state.")
    store = GatewayStore(state)
    if typed["remove"]:
        if not store.remove_device(typed["remove"]):
            raise FedrowsError(f"No device of this gateway is called {typed['remove']!r}.")
        say(f"Device {typed['remove']} is taken out: its key counts no longer.")
        return 0
    present = store.fact("program")
    for name, seen, program in store.devices():
        registration = (
            "registered" if program is not None and program == present else "not registered"
        )
        say(f"device {name}  {registration}  last seen {max(0, time.time() - seen):.0f} s ago")
    return 0

"""flower-supernode that looks for messages as often as we say; flwr's own wait is fixed at 3 s.

`python -m fedrows.flower.launch.supernode` takes flower-supernode's options. FEDROWS_NODE_POLL has
the seconds between two looks. Where flwr is not built as expected it keeps its own wait, and says
so.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedrows.flower.launch.patience import shorten_pulls, shorten_retries
from fedrows.flower.launch.processes import PORT_IN_USE, LaunchError, check_port, end_with_parent
from fedrows.flower.launch.superlink import _value, run_command

POLL = "FEDROWS_NODE_POLL"
LAST_ID = "FEDROWS_NODE_LAST_ID"


def shorten_waits(seconds: float) -> bool:
    """Makes no wait of the SuperNode's own loop longer than this; False if that cannot be done."""
    try:
        module: Any = importlib.import_module("flwr.supernode.start_client_internal")
        if module.time is not time:
            return False
    except (ImportError, AttributeError):
        return False
    names = {**vars(time), "sleep": lambda wanted: time.sleep(min(wanted, seconds))}
    module.time = SimpleNamespace(**names)
    return True


def sign_off(superlink: str, ca: Path, key: Path, node: int) -> bool:
    """Signs a node off that was killed before it could do so itself; False if that failed.

    A SuperLink refuses a node's key for a minute after its last sign of life.
    """
    try:
        fleet = importlib.import_module("flwr.supernode.fleet_http_client").FleetHttpClient
        auth = importlib.import_module("flwr.supernode.node_auth_http_interceptor")
        version = importlib.import_module("flwr.supercore.interceptors")
        messages = importlib.import_module("flwr.proto.fleet_pb2")
        ssh = importlib.import_module("cryptography.hazmat.primitives.serialization")
        private = ssh.load_ssh_private_key(key.read_bytes(), None)
        with fleet.from_server_address(
            superlink,
            False,
            ca.read_bytes(),
            interceptors=[
                version.RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                auth.NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        ) as client:
            client.DeactivateNode(messages.DeactivateNodeRequest(node_id=node))
    except Exception:  # it was signed off already, or the SuperLink is away: it will say so
        return False
    return True


def main() -> int:
    """Runs flower-supernode."""
    end_with_parent()
    words = sys.argv[1:]
    try:
        check_port(_value(words, "--host", "127.0.0.1"), int(_value(words, "--port", "9094")))
    except LaunchError as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return PORT_IN_USE
    if (last := os.environ.get(LAST_ID)) and (key := _value(words, "--auth-supernode-private-key")):
        ca = Path(_value(words, "--root-certificates"))
        sign_off(_value(words, "--superlink"), ca, Path(key), int(last))
    shorten_pulls()
    shorten_retries()
    if not shorten_waits(float(os.environ.get(POLL, "1"))):
        print("fedrows: this flwr keeps its own wait between messages.", file=sys.stderr)
    run_command("flower-supernode", words)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The web process of a gateway: `python -m fedrows.flower.gateway.service` and its options.

    --state DIR       the node's state folder, which it shares with the gateway's ClientApp
    --host, --port    where it listens; port 0 takes a free one
    --certificate, --key, --ca    for TLS; without them it speaks plain HTTP
    --hosts NAMES     the names that it is asked for, comma-separated
    --page DIR        a folder to serve at /

The port is written to gateway.port in the state folder. Nothing of a request is logged: its header
would name the device.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import write_private
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import LOOPBACK, application
from fedrows.flower.launch.connections import ConnectionLimits
from fedrows.flower.launch.listener import serve
from fedrows.flower.launch.processes import (
    PORT_IN_USE,
    LaunchError,
    check_port,
    end_with_parent,
    free_port,
    value_of,
)

PORT = "gateway.port"
LIMITS = ConnectionLimits(total=4000, per_address=2000, waiting=256, per_name=8)


def main() -> int:
    """Serves devices until the process is ended."""
    end_with_parent()
    os.umask(0o077)
    words = sys.argv[1:]
    host, state = value_of(words, "--host", "127.0.0.1"), Path(value_of(words, "--state"))
    port = int(value_of(words, "--port", "0")) or free_port(host)
    page, certificate = value_of(words, "--page"), value_of(words, "--certificate")
    hosts = {*LOOPBACK, *filter(None, value_of(words, "--hosts").lower().split(","))}
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    try:
        check_port(host, port)
        app = application(GatewayStore(state), Path(page) if page else None, hosts)
        write_private(state / PORT, f"{port}\n".encode())
    except FedrowsError as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return PORT_IN_USE if isinstance(error, LaunchError) else 2
    tls: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": value_of(words, "--key")}
    serve(
        app,
        ca=value_of(words, "--ca"),
        limits=LIMITS,
        host=host,
        port=port,
        log_level="info",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=75,
        **(tls if certificate else {}),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

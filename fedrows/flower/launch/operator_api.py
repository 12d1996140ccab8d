"""What the gate answers itself, for operators who have shown the control token.

    GET  /v1/fedrows/runs        how the last runs stand, with their nodes; runs/ID: one of them
    POST /v1/fedrows/stop        {"run": "17…"}: end the run after its present round
    POST /v1/fedrows/revoke      {"node": "95…"}: runs go on without the node
    POST /v1/fedrows/watching    {"metrics_port": 9109}: how the next run is watched

The key of a revoked node is refused by flwr, from its own list of nodes; the notice here is for the
runs that are going on.
"""

from __future__ import annotations

import json
from typing import Any

from fedrows.files.whole import as_json
from fedrows.flower.launch.operator_folder import WATCHING, OperatorFolder

PREFIX = "/v1/fedrows/"
LONGEST = 4096  # bytes of a request


class OperatorApi:
    """Answers operators from the files of a folder."""

    def __init__(self, folder: OperatorFolder) -> None:
        self._folder = folder

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        what = path.removeprefix(PREFIX)
        if method == "GET" and what.split("/")[0] == "runs":
            runs, run = self._folder.progress(), what.removeprefix("runs").removeprefix("/")
            return 200, as_json({"runs": [one for one in runs if run in ("", one.get("run"))]})
        if method != "POST" or what not in ("stop", "revoke", "watching"):
            return 404, b"There is no such request."
        try:
            request = _read(body)
            if what == "stop":
                self._folder.ask_to_stop(_id(request, "run"))
            elif what == "revoke":
                self._folder.revoke(_id(request, "node"))
            else:
                self._folder.set_watching(_watching(request))
        except ValueError as error:
            return 400, str(error).encode()
        return 200, as_json({"done": what})


def _read(body: bytes) -> dict[str, Any]:
    if len(body) > LONGEST:
        raise ValueError(f"The request has more than {LONGEST} bytes.")
    try:
        request = json.loads(body)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise ValueError("The request is not an object of JSON.")
    return request


def _id(request: dict[str, Any], name: str) -> int:
    text = str(request.get(name, ""))
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise ValueError(f"The request has no {name}.")
    return int(text)


def _watching(request: dict[str, Any]) -> dict[str, Any]:
    if odd := sorted(request.keys() - set(WATCHING)):
        raise ValueError(f"{odd[0]} cannot be set for a run from outside.")
    port, host = request.get("metrics_port"), request.get("metrics_host", "127.0.0.1")
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise ValueError("metrics_port must be a whole number from 0 to 65535.")
    if not isinstance(host, str) or len(host) > 255:
        raise ValueError("metrics_host must be the name of a host.")
    return request

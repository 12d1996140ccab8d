"""What an operator asks of a SuperLink: submit a run, look at it, stop it, admit a node's key."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import reason
from fedrows.flower.launch.flwr_calls import run_status
from fedrows.flower.launch.processes import environment

CONNECTION = "fedrows"
FINISHED = "finished"
Value = str | int | float | bool


class ControlError(FedrowsError):
    """A SuperLink that cannot be reached, or that refuses what it was asked."""


@dataclass(frozen=True)
class ControlClient:
    """An operator's connection to a SuperLink, with flwr's settings in a folder of its own."""

    address: str
    home: Path
    ca: Path | None = None  # None: without TLS
    mark: str = ""

    def submit(self, project: Path, config: Mapping[str, Value]) -> int:
        """The id of a new run of a Flower project, its config overridden by `config`."""
        if not (project / "pyproject.toml").is_file():
            raise ControlError(
                f"{project} is not a Flower project, for it has no pyproject.toml: name its folder."
            )
        words = ["run", str(project.resolve()), CONNECTION]
        if config:
            self.home.mkdir(parents=True, exist_ok=True)
            path = self.home / "run-config.toml"
            path.write_text(as_toml(config), "utf-8")
            words += ["--run-config", str(path)]
        return int(self._flwr(*words)["run-id"])

    def status(self, run: int) -> str:
        """pending, starting, running, or finished:completed, finished:failed, finished:stopped."""
        return self.look(run)[0]

    def look(self, run: int) -> tuple[str, str]:
        """The status of a run, and what Flower says about it."""
        try:
            return run_status(self.address, self.ca, run)
        except OSError as error:
            raise ControlError(
                f"The SuperLink at {self.address} does not say how run {run} is ({error})."
            ) from None

    def stop(self, run: int) -> None:
        """Ends a run."""
        self._flwr("stop", str(run), CONNECTION)

    def admit(self, public_key: Path, name: str = "") -> int:
        """Lists a node's public key; the id that the node will have, whenever it comes."""
        words = ["supernode", "register", str(public_key), CONNECTION]
        return int(self._flwr(*words, *(["--name", name] if name else []))["node-id"])

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that the SuperLink knows, with their id, status and key."""
        return list(self._flwr("supernode", "list", CONNECTION)["nodes"])

    def check(self) -> None:
        """Raises a ControlError unless the SuperLink can be reached, by TLS if it is to be."""
        check_reachable(self.address, self.ca)

    def _flwr(self, *words: str) -> dict[str, Any]:
        """What one of flwr's commands answers, in JSON."""
        self.home.mkdir(parents=True, exist_ok=True)
        secure = f'root-certificates = "{self.ca}"' if self.ca else "insecure = true"
        text = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.address}"\n{secure}\n'
        )
        path = self.home / "config.toml"
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
        done = subprocess.run(
            [str(Path(sys.executable).with_name("flwr")), *words, "--format", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(self.home, self.mark),
            process_group=0,
        )
        with contextlib.suppress(ValueError):
            answer = json.loads(done.stdout[done.stdout.index("{") :])
            if answer.get("success", True):
                return dict(answer)
            raise self._refused(words[0], str(answer.get("error-message", "")))
        raise self._refused(words[0], done.stderr or done.stdout)

    def _refused(self, what: str, text: str) -> ControlError:
        last = [line.strip(" │╭╰─╮╯❌\t") for line in text.splitlines()]
        reasons = [line for line in last if line and not line.startswith("Using SuperLink")]
        return ControlError(
            f"The SuperLink at {self.address} did not do `flwr {what}`: "
            f"{' '.join(reasons[-2:]) or 'it gave no reason'}"
        )


def check_reachable(address: str, ca: Path | None, timeout: float = 5.0) -> None:
    """Raises a ControlError unless a SuperLink answers, with a certificate of the authority `ca`.

    ca: None asks without TLS.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout) as plain:
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


def as_toml(config: Mapping[str, Value]) -> str:
    """Settings as TOML, which both of flwr's config options read."""
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in config.items())


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

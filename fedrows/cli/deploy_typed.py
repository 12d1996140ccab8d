"""What the actions of `fedrows deploy` share: reading what was typed, and whom to trust."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrows.cli.flags import Parser, UsageError
from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private

if TYPE_CHECKING:
    from fedrows.flower.launch.control import ControlClient


def needed(typed: dict[str, Any], name: str, otherwise: str) -> str:
    if not typed[name]:
        raise UsageError(f"{otherwise}.")
    return str(typed[name])


def positive(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise UsageError(f"{flag} is {text!r}, but must be a number from 0.05 to 3600.")
    return value


def writable(folder: Path, flag: str) -> Path:
    """The folder, made if need be; raises if it cannot be written."""
    folder = folder.absolute()
    try:
        make_private(folder)
        ok = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        ok = False
    if not ok:
        raise FedrowsError(f"{folder} is not a folder that can be written: choose one with {flag}.")
    return folder


def trust(typed: dict[str, Any]) -> Path | None:
    """The folder of certificates; None if it was asked to do without."""
    if typed["insecure"] and typed["certificates"]:
        raise UsageError("--insecure and --certificates contradict each other: choose one.")
    if not typed["insecure"] and not typed["certificates"]:
        raise UsageError(
            "Name the folder of certificates with --certificates, or ask to do without TLS with "
            "--insecure."
        )
    return Path(typed["certificates"]) if typed["certificates"] else None


def authority(certificates: Path) -> Path:
    from fedrows.flower.launch.certificates import CA

    return (certificates / CA if certificates.is_dir() else certificates).absolute()


def trusted_apps(typed: dict[str, Any], apps: Collection[str]) -> list[str]:
    """The SuperNode's flags for whose apps may run; raises if peers and policy protect nothing."""
    from fedrows.flower.launch.certificates import check_file

    signers = typed["trusted_entities"]
    if (typed["peers"] or typed["policy"]) and not (apps or signers):
        raise UsageError(
            "--peers and --policy protect nothing while the server chooses the app that keeps to "
            "them: name the apps that may run with --apps or --trusted-entities."
        )
    if not signers:
        return []
    check_file(Path(signers), "Name the right file with --trusted-entities")
    return ["--trusted-entities", str(Path(signers).absolute())]


def add_joining(parser: Parser, shard: str) -> None:
    """Adds the flags of whoever joins a SuperLink as a node. shard: what --shard is."""
    add = parser.add_argument
    add("--superlink", metavar="HOST:PORT", help="The SuperLink.")
    add("--certificates", metavar="DIR", help="The folder of ca.pem.")
    add("--key", metavar="FILE", help="This node's private key.")
    add("--shard", metavar="PATH", help=shard)
    add("--state", metavar="DIR", help="Folder for what the node keeps.")
    add("--name", metavar="NAME", help="The node's name (that of its key).")
    add("--poll", metavar="X", default="1", help="Seconds between requests (1).")
    add("--apps", metavar="HASHES", help="SHA-256 of the only apps that may run.")
    add("--trusted-entities", metavar="FILE", help="Whose signed apps may run.")
    add("--peers", metavar="FILE", help="The nodes' signing keys (private runs).")
    add("--policy", metavar="FILE", help="Made by `fedrows deploy policy`.")


def add_connection(parser: Parser) -> None:
    parser.add_argument("--superlink", metavar="HOST:PORT", help="The SuperLink.")
    parser.add_argument("--certificates", metavar="DIR", help="The folder of ca.pem.")
    parser.add_argument("--insecure", action="store_true", help="Use no TLS.")
    parser.add_argument(
        "--token",
        metavar="FILE",
        help="The SuperLink's control.token (this user's, if it is here).",
    )


def connect(typed: dict[str, Any]) -> ControlClient:
    """The operator's connection to the SuperLink that these flags name; it must answer."""
    from fedrows.flower.launch.certificates import read_certificate
    from fedrows.flower.launch.control import ControlClient, split_address
    from fedrows.flower.launch.control_token import find_token, read_token

    address = needed(typed, "superlink", "Name the SuperLink with --superlink HOST:PORT")
    host, port = split_address(address)
    certificates = trust(typed)
    ca = authority(certificates) if certificates else None
    if ca is not None:
        read_certificate(ca)
    token = Path(typed["token"]) if typed["token"] else find_token(host, port)
    if token is not None:
        read_token(token)
    control = ControlClient(address, ca, token)
    control.check()
    return control

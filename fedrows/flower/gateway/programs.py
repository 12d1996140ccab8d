"""The programs that a gateway serves: a folder each, named by the digest of a run's contract."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private, placing, reason
from fedrows.flower.gateway.forms import RegistrationForm
from fedrows.flower.gateway.store import GatewayStore

MANIFEST = "manifest.json"
CURRENT = "program"  # the fact that has the id of the present program


class ProgramError(FedrowsError):
    """A program that devices cannot be given."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a program's folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not re.fullmatch(
        "[0-9a-f]{32}", str(manifest.get("contract"))
    ):
        raise ProgramError(
            f"{path} is no manifest of a device program with a contract: make one with `fedrows "
            "export --device`."
        )
    return manifest


class Programs:
    """The programs of a gateway, in its state folder."""

    def __init__(self, store: GatewayStore) -> None:
        self.store, self.folder = store, store.folder / "programs"
        self._files: dict[str, dict[str, dict[str, Any]]] = {}  # by program: read once

    def path(self, id_: str) -> Path:
        """The folder of a program."""
        return self.folder / id_

    def add(self, id_: str, made: Path) -> None:
        """Copies a program's files into the gateway's folder, all of them or none."""
        target = self.path(id_)
        if target.is_dir():
            return
        try:
            make_private(self.folder)
            with placing(target) as part:
                shutil.copytree(made, part)
        except OSError as error:
            raise ProgramError(
                f"The program in {made} cannot be copied to {target} ({reason(error)})."
            ) from None

    def publish(self, id_: str, form: RegistrationForm) -> None:
        """Makes a program the present one: devices fetch it and register for it."""
        if self.store.fact(f"form/{id_}") != form.text():
            self.store.set_fact(f"form/{id_}", form.text())
        if self.store.fact(CURRENT) != id_:
            self.store.set_fact(CURRENT, id_)

    def current(self) -> str | None:
        """The id of the present program; None before the first run."""
        return self.store.fact(CURRENT)

    def form(self, id_: str) -> RegistrationForm | None:
        """What a program's registrations look like; None if it is not known."""
        text = self.store.fact(f"form/{id_}")
        return None if text is None else RegistrationForm.read(text)

    def files(self, id_: str) -> dict[str, dict[str, Any]]:
        """The files of a program: their sizes and digests by their names; they never change."""
        if id_ not in self._files:
            files = sorted(path for path in self.path(id_).iterdir() if path.is_file())
            self._files[id_] = {
                path.name: {
                    "bytes": path.stat().st_size,
                    "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                }
                for path in files
            }
        return self._files[id_]

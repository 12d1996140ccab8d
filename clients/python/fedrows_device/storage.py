"""What a device keeps, in a folder of its own. A file is there whole or not at all.

device.json                     who it is: gateway, id, name and key
program/ID/                     the files of the present program
registered/VERSION/             a registration: its message, and the data it was made of
runs/RUN/TAG.npz                what training left on the device: local rows, kept state
work/ID/                        work under way: its rows, and the upload that is being sent
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedrows_device.wire import Arrays

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


class StorageError(Exception):
    """The device's folder cannot be written or read."""


class DeviceStorage:
    """A device's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            f"The device's folder {self.folder} cannot be written ({error.strerror or error}): "
            "make room for it, or choose another with --state."
        )

    def write(self, name: str, data: bytes) -> None:
        """Puts a file in its place in one step; only the user may read it."""
        path = self.folder / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, path)
            except BaseException:
                Path(part).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._failed(error) from None

    def read(self, name: str) -> bytes | None:
        """A file; None if it is not there."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from None

    def remove(self, name: str) -> None:
        """Removes a file or a folder, if it is there."""
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def names(self, name: str) -> list[str]:
        """The names in a folder."""
        path = self.folder / name
        found = sorted(path.iterdir()) if path.is_dir() else []
        return [x.name for x in found if not x.name.startswith(".")]

    def path(self, *names: str) -> Path:
        """A path in the folder; its names may come from the gateway, so they are checked."""
        if not all(_NAME.fullmatch(name) and name.strip(".") for name in names):
            raise StorageError("The gateway names a file in a way that no gateway does.")
        return self.folder.joinpath(*names)

    # -- who the device is --

    def identity(self) -> dict[str, Any]:
        """Who the device is; empty before it has begun to enrol."""
        data = self.read("device.json")
        try:
            known = {} if data is None else json.loads(data)
            assert isinstance(known, dict)
        except (ValueError, AssertionError):
            raise StorageError(
                f"{self.folder / 'device.json'} is damaged: move it away, and enrol again."
            ) from None
        return known

    def put_identity(self, known: dict[str, Any]) -> None:
        """Stores who the device is."""
        self.write("device.json", json.dumps(known).encode())

    # -- what training leaves --

    def settle(self, run: str, accepted: int) -> Arrays:
        """What the try that counted has left; what all other tries left is dropped."""
        folder = self.path("runs", run)
        kept: Arrays = {}
        for path in folder.glob("*.npz") if folder.is_dir() else ():
            if path.stem != str(accepted):
                path.unlink(missing_ok=True)
                continue
            try:
                with np.load(path, allow_pickle=False) as file:
                    kept = {name: file[name] for name in file.files}
            except (OSError, ValueError) as error:
                raise StorageError(f"{path} is damaged ({error}): move it away.") from None
        return kept

    def put_memory(self, run: str, tag: int, arrays: Arrays) -> None:
        """Stores what one try of a round leaves, beside what is there."""
        import io

        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        self.path("runs", run)
        self.write(f"runs/{run}/{int(tag)}.npz", buffer.getvalue())

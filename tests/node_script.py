"""A script of the browser's client that node runs: a line of JSON in, a line of JSON out."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from fedrows.errors import FedrowsError

FOLDER = Path(__file__).parent.parent / "clients" / "browser" / "test"


class BrowserRefuses(FedrowsError):
    """The browser's client goes no further."""


class NodeScript:
    """A running script; one question at a time."""

    def __init__(self, name: str) -> None:
        node = shutil.which("node")
        if node is None:
            pytest.skip("needs node: install nodejs")
        pipe, words = subprocess.PIPE, [node, str(FOLDER / name)]
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self._lock = threading.Lock()

    def ask(self, **asked: Any) -> dict[str, Any]:
        """What the script answers; an error of the client is raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise BrowserRefuses(answer["error"])
        return answer

    def close(self) -> None:
        """Ends the script."""
        self._process.communicate()

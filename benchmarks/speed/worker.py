"""A peer in a process and an environment of its own, told over a pipe how many rounds to run.

The other end is benchmarks/peers/worker.py, which also says what goes through the pipe.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.environments import PeerError

_PATIENCE = 30  # seconds that a peer may take to end


class Worker:
    """A peer that waits for orders; calling it runs so many rounds."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (see close)
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.facts = self._answer()  # versions, and how it was set up
        except PeerError:
            self.close()
            raise

    def __call__(self, count: int) -> None:
        self._ask(f"run {count}")

    def loss(self) -> float:
        """The loss of the model as it is now."""
        return float(self._ask("loss")["loss"])

    def close(self) -> None:
        """Ends the peer; one that does not end by itself is killed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._errors.close()

    def _ask(self, order: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._ended() from None
        if not isinstance(answer, dict):
            raise self._ended()
        return answer

    def _ended(self) -> PeerError:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        last = lines[-1] if lines else "it said nothing"
        return PeerError(
            f"{self.name} stopped answering ({last.rstrip('.')}): run it by hand to see more, "
            "or leave it out with --only."
        )

"""What carries messages to nodes: Flower's Grid (see `apps`), or a loopback in tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Transport(Protocol):
    """Carries messages to nodes and their answers back."""

    def nodes(self) -> list[int]:
        """Returns the nodes that are connected, by Flower's ids."""

    def send(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        """Sends a message to each node; returns message id → node."""

    def receive(self, message_ids: Iterable[str]) -> dict[str, bytes | str]:
        """Returns the answers that have come: bytes, or why there will be none."""

    def wait(self, seconds: float) -> None:
        """Waits until another answer may have come, or until the time is over."""

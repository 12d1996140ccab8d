"""Kills this process before or after one call of a function."""

from __future__ import annotations

import os
import signal
from typing import Any


def die_at(owner: Any, name: str, call: int, after: bool) -> None:
    """Has the n-th call of a module's function or a class's method be this process's last."""
    real, left = getattr(owner, name), [call]

    def dying(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)

"""How long flwr waits: for the parts of a message, and for a server that is away.

The parts of a message are sent after the message itself. flwr 1.41 looks for them again after 1,
2, 4, … seconds, which makes an exchange slow, and for three minutes when the sender died in
between, which holds up everybody else's answers. A server that is away is tried again after up to
20 seconds. All are fixed numbers.
"""

from __future__ import annotations

import importlib
from typing import Any

FIRST_WAIT, LONGEST_WAIT = 0.05, 0.5  # seconds between two looks
LONGEST_RETRY = 5.0  # seconds between two tries to reach a server
WAITED_FOR = 10.0  # seconds for one message in all, unless said otherwise


def shorten_pulls(seconds: float = WAITED_FOR) -> bool:
    """Waits no longer than `seconds` for a message's parts; False if flwr is not as expected.

    In this process alone. A message that is not whole by then comes as one with an error.
    """
    try:
        module: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
        functions = [module.pull_objects, module.pull_and_inflate_object_from_tree]
    except (ImportError, AttributeError):
        return False
    wanted = {"max_time": seconds, "initial_backoff": FIRST_WAIT, "backoff_cap": LONGEST_WAIT}
    for function in functions:
        defaults = function.__kwdefaults__ or {}
        if not wanted.keys() <= defaults.keys():
            return False
        function.__kwdefaults__ = {**defaults, **wanted}
    return True


def shorten_retries(seconds: float = LONGEST_RETRY) -> bool:
    """Tries a server that is away at least this often; False if flwr is not as expected."""
    try:
        module: Any = importlib.import_module("flwr.supercore.retry.http_retry")
        module.MAX_RETRY_DELAY = min(seconds, module.MAX_RETRY_DELAY)
    except (ImportError, AttributeError):
        return False
    return True

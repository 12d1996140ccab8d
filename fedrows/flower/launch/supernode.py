"""flower-supernode that polls often: `python -m fedrows.flower.launch.supernode` and its options.

FEDROWS_NODE_POLL has the seconds between two looks for messages; a SuperLink that holds a question
until there is a message is asked again at once. FEDROWS_BELL is the bell that is rung for the
executor, and by which the SuperNode learns that its app has answered. FEDROWS_NODE_LAST_ID has the
id that this node had when it was killed: the SuperLink refuses a node's key for a minute after its
last sign of life, unless the node is signed off first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedrows.flower.launch.bell import BELL, Bell
from fedrows.flower.launch.flwr_answers import answer_for_killed, send_every_answer
from fedrows.flower.launch.flwr_calls import run_command, sign_off
from fedrows.flower.launch.flwr_patches import (
    pull_objects_sooner,
    retry_more_often,
    ring_for_messages,
    wait_for_bell,
)
from fedrows.flower.launch.notices import FailedRequests
from fedrows.flower.launch.processes import (
    PORT_IN_USE,
    LaunchError,
    check_port,
    end_with_parent,
    value_of,
)

POLL = "FEDROWS_NODE_POLL"
LAST_ID = "FEDROWS_NODE_LAST_ID"


def main() -> int:
    """Runs flower-supernode."""
    end_with_parent()
    words = sys.argv[1:]
    try:
        check_port(value_of(words, "--host", "127.0.0.1"), int(value_of(words, "--port", "9094")))
        pull_objects_sooner()
        retry_more_often(failed=FailedRequests())
        bell = Bell(os.environ.get(BELL))
        wait_for_bell(bell, float(os.environ.get(POLL, "1")))
        ring_for_messages(bell)
        answer_for_killed()
        send_every_answer()
    except LaunchError as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return PORT_IN_USE if str(error).startswith("Port") else 2
    key = value_of(words, "--auth-supernode-private-key")
    if (last := os.environ.get(LAST_ID)) and key:
        ca = Path(value_of(words, "--root-certificates"))
        sign_off(value_of(words, "--superlink"), ca, Path(key), int(last))
    run_command("flower-supernode", words)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""flower-superlink behind the gate: `python -m fedrows.flower.launch.superlink` and its options.

FEDROWS_CONTROL_FROM has the networks from which runs may be submitted and nodes admitted,
FEDROWS_CONTROL_TOKEN the file of the token that operators show, and FEDROWS_MAX_BODY the largest
body that a node may send, in bytes. FEDROWS_BELL is the bell that is rung when a node has answered.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from fedrows.flower.launch.bell import BELL, Bell
from fedrows.flower.launch.control_token import TokenError, read_token
from fedrows.flower.launch.flwr_calls import run_command
from fedrows.flower.launch.flwr_patches import (
    clean_up_less_often,
    count_no_traffic,
    excuse_database,
    guard_control_api,
    listen_with,
    queue_for_database,
)
from fedrows.flower.launch.gate import NODE_BODY, THIS_MACHINE, Gate, networks
from fedrows.flower.launch.listener import serve
from fedrows.flower.launch.long_poll import LongPoll
from fedrows.flower.launch.notices import DATABASE, LEFT, Notices
from fedrows.flower.launch.operator_folder import FOLDER, OperatorFolder
from fedrows.flower.launch.processes import (
    PORT_IN_USE,
    LaunchError,
    check_port,
    end_with_parent,
    value_of,
)

CONTROL_FROM = "FEDROWS_CONTROL_FROM"
CONTROL_TOKEN = "FEDROWS_CONTROL_TOKEN"
MAX_BODY = "FEDROWS_MAX_BODY"


def main() -> int:
    """Runs flower-superlink behind the gate."""
    end_with_parent()
    words = sys.argv[1:]
    try:
        for patch in (clean_up_less_often, queue_for_database, count_no_traffic):
            patch()
        guard_control_api(LongPoll, bell=Bell(os.environ.get(BELL)))
        notices = Notices(left=os.environ.get(LEFT))
        guard_control_api(
            Gate,
            notices=notices,
            networks=networks(os.environ.get(CONTROL_FROM, THIS_MACHINE)),
            token=read_token(Path(os.environ.get(CONTROL_TOKEN, "control.token"))),
            node_body=int(os.environ.get(MAX_BODY, NODE_BODY)),
            operator=OperatorFolder.named(os.environ.get(FOLDER)),
        )
        authority = value_of(words, "--ssl-ca-certfile")
        listen_with(partial(serve, notices=notices, ca=authority))
        excuse_database(partial(_excuse, notices))
        check_port(value_of(words, "--host", "127.0.0.1"), int(value_of(words, "--port", "8000")))
    except (LaunchError, TokenError) as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return PORT_IN_USE if str(error).startswith("Port") else 2
    run_command("flower-superlink", words)
    return 0


def _excuse(notices: Notices, why: str) -> str:
    """Notes that the database cannot be used; the sentence for who asked."""
    sentence = (
        f"The SuperLink's database cannot be used ({why}): free room on its disk, and everything "
        "goes on."
    )
    notices.add(DATABASE, sentence)
    return sentence


if __name__ == "__main__":
    sys.exit(main())

"""flower-superlink behind the gate: `python -m fedrows.flower.launch.superlink` and its options.

FEDROWS_CONTROL_FROM has the networks from which runs may be submitted and nodes admitted.
"""

from __future__ import annotations

import os
import sys

from fedrows.flower.launch.flwr_calls import run_command
from fedrows.flower.launch.flwr_patches import guard_control_api
from fedrows.flower.launch.gate import THIS_MACHINE, Gate, networks
from fedrows.flower.launch.processes import (
    PORT_IN_USE,
    LaunchError,
    check_port,
    end_with_parent,
    value_of,
)

CONTROL_FROM = "FEDROWS_CONTROL_FROM"


def main() -> int:
    """Runs flower-superlink behind the gate."""
    end_with_parent()
    words = sys.argv[1:]
    try:
        guard_control_api(Gate, networks=networks(os.environ.get(CONTROL_FROM, THIS_MACHINE)))
        check_port(value_of(words, "--host", "127.0.0.1"), int(value_of(words, "--port", "8000")))
    except LaunchError as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return PORT_IN_USE if str(error).startswith("Port") else 2
    run_command("flower-superlink", words)
    return 0


if __name__ == "__main__":
    sys.exit(main())

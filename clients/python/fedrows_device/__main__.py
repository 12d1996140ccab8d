"""`python -m fedrows_device`: one device that takes part in a federation until it is stopped.

    python -m fedrows_device --gateway https://HOST:PORT --ca ca.pem --token T \
        --data examples.json --state FOLDER
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedrows_device.session import DeviceSession, SessionError
from fedrows_device.signed_http import GatewayRefused, GatewayUnreachable, SignedHttp, pause_of
from fedrows_device.storage import DeviceStorage, StorageError

FINAL = (400, 401, 403, 411, 413)  # refusals that waiting does not mend


def main(words: Sequence[str] | None = None) -> int:
    """Runs a device; 2 if it cannot go on."""
    parser = argparse.ArgumentParser("python -m fedrows_device", description=__doc__)
    parser.add_argument("--gateway", required=True, help="https://HOST:PORT")
    parser.add_argument("--ca", type=Path, help="the authority's certificate (the system's)")
    parser.add_argument("--token", help="a one-time token, the first time")
    parser.add_argument("--name", help="what the federation calls this device (its id)")
    parser.add_argument("--data", type=Path, required=True, help="the file of its examples")
    parser.add_argument("--state", type=Path, required=True, help="folder for what it keeps")
    parser.add_argument(
        "--program", metavar="SHA256", help="of the manifest.json of the only program to run (any)"
    )
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    given = parser.parse_args(words)
    http: SignedHttp | None = None
    try:
        if not given.data.is_file():
            raise SessionError(f"There are no data {given.data}: name the file with --data.")
        http = SignedHttp(given.gateway, given.ca)
        if given.program and not re.fullmatch("[0-9a-fA-F]{64}", given.program):
            raise SessionError("--program takes the SHA-256 of a manifest.json: 64 digits.")
        storage = DeviceStorage(given.state)
        session = DeviceSession(http, storage, given.data, pinned=given.program)
        return run(session, given.token, given.name, given.rounds)
    except (SessionError, StorageError, GatewayRefused, ValueError) as error:
        print(f"fedrows_device: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if http is not None:
            http.close()


def run(session: DeviceSession, token: str | None, name: str | None, rounds: int | None) -> int:
    """Takes part until so many rounds are done; waits where waiting helps."""
    pause, said, done = 1.0, "", 0
    while rounds is None or done < rounds:
        try:
            if not session.is_enrolled and token:
                session.enrol(token, name)
                print(f"Enrolled as {session.name}.", flush=True)
            step = session.step()
        except GatewayUnreachable as error:
            if str(error) != said:
                said = str(error)
                print(f"fedrows_device: {said}", file=sys.stderr, flush=True)
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 60.0)
            continue
        except GatewayRefused as error:
            if error.status in FINAL:
                raise
            time.sleep(pause_of(error.content, pause))
            continue
        pause = 1.0
        if step.done == "trained":
            done += 1
            print(f"Round {step.round}: trained and sent.", flush=True)
        elif step.why and step.why != said:
            said = step.why
            print(said, flush=True)
        if step.after:
            time.sleep(step.after * random.uniform(0.8, 1.2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
